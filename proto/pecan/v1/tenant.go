package pecanv1

// DefaultTenant is the tenant of jobs that name none.
const DefaultTenant = "default"

// EffectiveTenant returns the tenant of a job, with the default filled in.
func (o *JobOptions) EffectiveTenant() string {
	if name := o.GetTenant(); name != "" {
		return name
	}
	return DefaultTenant
}

// EffectiveWeight returns the weight of a job, with the default filled in. Jobs of earlier versions have none.
func (o *JobOptions) EffectiveWeight() float64 {
	if weight := o.GetWeight(); weight > 0 {
		return weight
	}
	return 1
}
