package dispatcher

import (
	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/dispatcher/ordering"
	"github.com/pecan-ml/pecan/service/graph"
)

// planner is Graphs by service/graph.
type planner struct {
	limits graph.Limits
	env    graph.Env
}

// NewGraphs gives the Graphs of a configuration.
func NewGraphs(cfg Config) Graphs {
	limits := graph.DefaultLimits()
	limits.MaxBytes = cfg.MaxGraphBytes
	return &planner{limits: limits, env: graph.Env{StaticWorkers: len(cfg.Core.WorkerAddresses)}}
}

// Check implements Graphs.
func (p *planner) Check(data []byte, components []*pecanv1.ComponentSpec) (string, error) {
	g, err := graph.Parse(data, p.limits)
	if err != nil {
		return "", err
	}
	if err := graph.CheckSpec(g, components); err != nil {
		return "", err
	}
	return g.Fingerprint(), nil
}

// Plan implements Graphs.
func (p *planner) Plan(data []byte, options *pecanv1.JobOptions) (*pecanv1.Plan, error) {
	g, err := graph.Parse(data, p.limits)
	if err != nil {
		return nil, err
	}
	return graph.Analyze(g, options, p.env)
}

// Order implements Graphs.
func (p *planner) Order(data []byte, plan *pecanv1.Plan, options *pecanv1.JobOptions, nodes []*pecanv1.NodeMetrics) (*ordering.Proposal, error) {
	g, err := graph.Parse(data, p.limits)
	if err != nil {
		return nil, err
	}
	return ordering.Propose(g, plan, options, nodes)
}

// Named implements Graphs.
func (p *planner) Named(data []byte, plan *pecanv1.Plan, options *pecanv1.JobOptions, named *pecanv1.EpochOrder) ([]string, error) {
	g, err := graph.Parse(data, p.limits)
	if err != nil {
		return nil, err
	}
	return ordering.Named(g, plan, options, named)
}
