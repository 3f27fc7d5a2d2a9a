package core

import (
	"maps"
	"slices"
	"strings"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/proto/reason"
)

// checkTenant refuses a job of a tenant that the table of tenants does not name. Without a table there are no quotas, and
// every name is a tenant.
func (c *Core) checkTenant(options *pecanv1.JobOptions) error {
	name := options.EffectiveTenant()
	if _, known := c.cfg.Tenants[name]; known || c.cfg.Tenants == nil {
		return nil
	}
	return reason.New(reason.TenantUnknown, "create job: the dispatcher's table of tenants (--tenants) has no tenant %q; give one of %s as tenant, or ask for an entry in the table", name,
		strings.Join(slices.Sorted(maps.Keys(c.cfg.Tenants)), ", "))
}

// tenantsStatus returns what tenants use: those with jobs, and those in the table.
func (c *Core) tenantsStatus(jobs []*pecanv1.JobStatus) []*pecanv1.TenantStatus {
	byName := map[string]*pecanv1.TenantStatus{}
	tenant := func(name string) *pecanv1.TenantStatus {
		if byName[name] == nil {
			usage := c.schedule.OfTenant(name)
			bounds := c.schedule.BoundsOf(name)
			byName[name] = &pecanv1.TenantStatus{
				Name: name, Weight: bounds.Weight, MaxSlots: int32(bounds.MaxSlots), MaxSlotsPerJob: int32(bounds.MaxSlotsPerJob),
				Running: uint32(usage.Running), Bounded: usage.Bounded,
			}
		}
		return byName[name]
	}
	for name := range c.cfg.Tenants {
		tenant(name)
	}
	for _, job := range jobs {
		t := tenant(job.Options.EffectiveTenant())
		t.Jobs++
		for _, epoch := range job.Epochs {
			t.Waiting += epoch.StreamsWaiting
		}
	}
	var list []*pecanv1.TenantStatus
	for _, name := range slices.Sorted(maps.Keys(byName)) {
		list = append(list, byName[name])
	}
	return list
}
