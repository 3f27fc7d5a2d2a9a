package autoscale

// Fixed asks for one configuration at all times.
type Fixed Configuration

// FastFlow is the configuration that the Pecan paper uses for FastFlow: two remote and two local workers, for 14 processors
// of the host per core of the accelerator. FastFlow also divides the steps between them; here, only the numbers are
// compared.
var FastFlow = Fixed{Remote: 2, Local: 2}

// Collocated runs all steps on the trainer's host, like tf.data without a service.
var Collocated = Fixed{Local: 1}

// Next returns the fixed configuration.
func (f Fixed) Next(g Goal, _ Window) Decision {
	return Decision{Target: g.Limits.Clamp(Configuration(f)), State: "fixed", Converged: true, Reason: "the number of workers is fixed"}
}
