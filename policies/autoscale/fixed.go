package autoscale

// Fixed asks for one configuration at all times.
type Fixed Configuration

// Collocated runs all steps on the trainer's host, like tf.data without a service.
var Collocated = Fixed{Local: 1}

// Next returns the fixed configuration.
func (f Fixed) Next(g Goal, _ Window) Decision {
	return Decision{Target: g.Limits.Clamp(Configuration(f)), State: "fixed", Converged: true, Reason: "the number of workers is fixed"}
}
