package ordering

import (
	"errors"
	"fmt"
	"slices"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/graph"
	graphorder "github.com/pecan-ml/pecan/service/graph/order"
)

// Named finds the order that a position names among those that a job's graph and step traits allow. It does not
// need a trial, because there was one where the trainer stopped. A position that names another order, or none, is
// an error.
func Named(g *graph.Graph, plan *pecanv1.Plan, options *pecanv1.JobOptions, named *pecanv1.EpochOrder) ([]string, error) {
	if plan.GetFingerprint() != g.Fingerprint() {
		return nil, errors.New("the plan is not this dataset's")
	}
	p := newProposer(g, plan, options, nil)
	p.unmeasured = true
	p.describe()
	registered := p.names(unmoved(len(p.steps)))
	order, err := named.Names(plan, registered)
	if err != nil {
		return nil, err
	}
	ordered, err := graphorder.Reorder(g, order)
	if err != nil {
		return nil, err
	}
	if slices.Equal(order, registered) {
		return nil, errors.New("it is the registered order")
	}
	if err := p.allows(order); err != nil {
		return nil, err
	}
	if why := p.planDiffers(ordered); why != "" {
		return nil, errors.New(why)
	}
	return order, nil
}

// allows checks each pair of steps that swapped.
func (p *proposer) allows(order []string) error {
	var places []int
	for _, name := range order {
		if i := slices.IndexFunc(p.steps, func(at int) bool { return p.all[at].Node == name }); i >= 0 {
			places = append(places, i)
		}
	}
	for i, j := range swapped(places) {
		for _, why := range []string{p.Steps[i].Fixed, p.Steps[j].Fixed, p.Constraints[[2]int{i, j}]} {
			if why != "" {
				return fmt.Errorf("%s may not run before %s: %s", p.name(j), p.name(i), why)
			}
		}
	}
	return nil
}
