package dispatcher

import (
	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
)

// Graphs is what the dispatcher has to know of dataset graphs.
type Graphs interface {
	// Check refuses a graph that cannot be served, or that does not give the components its trainer says, and gives the
	// fingerprint of one that can.
	Check(graph []byte, components []*pecanv1.ComponentSpec) (fingerprint string, err error)
	// Plan decides how a graph is divided for a job with these options.
	Plan(graph []byte, options *pecanv1.JobOptions) (*pecanv1.Plan, error)
}
