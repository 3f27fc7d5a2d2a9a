package ordering

import (
	"errors"
	"fmt"
	"slices"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/graph"
	graphorder "github.com/pecan-ml/pecan/service/graph/order"
)

// Named returns the order that a trainer's position names. The order needs no trial, because the job that saved
// the position had one. Named returns an error if the position names no order, or one that the steps' traits or
// the graph do not allow.
func Named(g *graph.Graph, plan *pecanv1.Plan, options *pecanv1.JobOptions, named *pecanv1.EpochOrder) ([]string, error) {
	if plan.GetFingerprint() != g.Fingerprint() {
		return nil, errors.New("the plan belongs to another dataset")
	}
	p := newProposer(g, plan, options, nil)
	p.unmeasured = true
	p.describe()
	registered := listedLike(named, p.names(unmoved(len(p.steps))))
	order, err := named.Names(plan, registered)
	if err != nil {
		return nil, err
	}
	ordered, err := graphorder.Reorder(g, order)
	if err != nil {
		return nil, err
	}
	if slices.Equal(order, registered) {
		return nil, errors.New("the position names the registered order")
	}
	if err := p.allows(order); err != nil {
		return nil, err
	}
	if why := p.planDiffers(ordered); why != "" {
		return nil, errors.New(why)
	}
	return order, nil
}

// listedLike returns the steps that a position lists, in the registered order. Positions of earlier versions list no steps in
// functions, which keep their places then.
func listedLike(named *pecanv1.EpochOrder, registered []string) []string {
	outside := slices.DeleteFunc(slices.Clone(registered), func(name string) bool { return graphorder.Outermost(name) != name })
	if len(named.GetSteps()) == len(outside) {
		return outside
	}
	return registered
}

// allows returns an error if two steps swapped that may not.
func (p *proposer) allows(order []string) error {
	var indexes []int
	for _, name := range order {
		if i := slices.IndexFunc(p.steps, func(at int) bool { return p.all[at].Node == name }); i >= 0 {
			indexes = append(indexes, i)
		}
	}
	for i, j := range swapped(indexes) {
		for _, why := range []string{p.Steps[i].Fixed, p.Steps[j].Fixed, p.Constraints[[2]int{i, j}]} {
			if why != "" {
				return fmt.Errorf("%s must run after %s: %s", p.name(j), p.name(i), why)
			}
		}
	}
	return nil
}
