package dispatcher

import (
	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/dispatcher/ordering"
)

// Graphs is what the dispatcher has to know of dataset graphs.
type Graphs interface {
	// Check refuses a graph that cannot be served, or that does not give the components its trainer says, and gives the
	// fingerprint of one that can.
	Check(graph []byte, components []*pecanv1.ComponentSpec) (fingerprint string, err error)
	// Plan decides how a graph is divided for a job with these options.
	Plan(graph []byte, options *pecanv1.JobOptions) (*pecanv1.Plan, error)
	// Order proposes an order of the steps of a graph, from figures of what they cost.
	Order(graph []byte, plan *pecanv1.Plan, options *pecanv1.JobOptions, nodes []*pecanv1.NodeMetrics) (*ordering.Proposal, error)
	// Named finds the order that a position names, and refuses one that the steps of a graph may not have.
	Named(graph []byte, plan *pecanv1.Plan, options *pecanv1.JobOptions, named *pecanv1.EpochOrder) ([]string, error)
}
