package ordering_test

import (
	"slices"
	"strings"
	"testing"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/dispatcher/ordering"
	"github.com/pecan-ml/pecan/service/graph/graphtest"
	graphorder "github.com/pecan-ml/pecan/service/graph/order"
)

// Positions of earlier versions list no steps in functions. A trainer continues from them: steps in functions keep their places.
func TestAPositionOfAnEarlierVersionNamesStepsOutsideOfFunctions(t *testing.T) {
	g := graphtest.Parse(t, "steps_in_a_function")
	asked := options(pecanv1.OrderTolerance_ORDER_TOLERANCE_EXACT)
	planned := plan(t, g, asked)
	registered := graphorder.Names(g)
	outside := slices.DeleteFunc(slices.Clone(registered), func(name string) bool { return graphorder.Outermost(name) != name })
	if len(outside) < 3 || len(outside) == len(registered) {
		t.Fatal(registered)
	}
	last := len(outside) - 1
	swapped := slices.Clone(outside)
	swapped[last-1], swapped[last] = swapped[last], swapped[last-1]
	order, err := ordering.Named(g, planned, asked, pecanv1.NewEpochOrder(planned, swapped))
	if err != nil || !slices.Equal(order, swapped) {
		t.Fatal(order, err)
	}
	ordered, err := graphorder.Reorder(g, order)
	if err != nil {
		t.Fatal(err)
	}
	want := slices.Concat(registered[:len(registered)-2], swapped[last-1:])
	if now := graphorder.Names(ordered); !slices.Equal(now, want) {
		t.Errorf("steps run as %v, want %v", now, want)
	}
	if _, err := ordering.Named(g, planned, asked, pecanv1.NewEpochOrder(planned, outside)); err == nil || !strings.Contains(err.Error(), "the registered order") {
		t.Errorf("the registered order: %v", err)
	}
}

// A trainer may send any position, so Named accepts only an order that Propose could have proposed.
func TestNamedAcceptsOnlyOrdersThatTheTraitsAllow(t *testing.T) {
	const exact, approximate = pecanv1.OrderTolerance_ORDER_TOLERANCE_EXACT, pecanv1.OrderTolerance_ORDER_TOLERANCE_APPROXIMATE
	g := graphtest.Parse(t, "badly_ordered")
	proposed := func(tolerance pecanv1.OrderTolerance) []string {
		asked := options(tolerance)
		proposal, err := ordering.Propose(g, plan(t, g, asked), asked, ordering.Measured{Nodes: measured(g, badly)})
		if err != nil || len(proposal.Order) == 0 {
			t.Fatal(proposal, err)
		}
		return proposal.Order
	}
	var registered []string
	for _, step := range graphorder.TraitsOf(g) {
		registered = append(registered, step.Node)
	}
	first, second := slices.Clone(registered), proposed(exact)
	slices.Reverse(first)
	second = append(second[1:], second[0])
	for name, c := range map[string]struct {
		order     []string
		tolerance pecanv1.OrderTolerance
		refused   string
	}{
		"the order under exact":                 {proposed(exact), exact, ""},
		"the order under exact, in approximate": {proposed(exact), approximate, ""},
		"the order under approximate":           {proposed(approximate), approximate, ""},
		"the order under approximate, in exact": {proposed(approximate), exact, "must run after"},
		"the registered order":                  {registered, approximate, "the registered order"},
		"the reversed order":                    {first, approximate, "cannot move to position"},
		"the first step last":                   {second, approximate, "cannot move to position"},
		"steps of another dataset":              {[]string{"a", "b"}, approximate, "names 2 steps"},
	} {
		asked := options(c.tolerance)
		planned := plan(t, g, asked)
		order, err := ordering.Named(g, planned, asked, pecanv1.NewEpochOrder(planned, c.order))
		switch {
		case c.refused == "" && (err != nil || !slices.Equal(order, c.order)):
			t.Errorf("%s: %v %v", name, order, err)
		case c.refused != "" && (err == nil || !strings.Contains(err.Error(), c.refused)):
			t.Errorf("%s: %v %v, want %q", name, order, err, c.refused)
		}
	}
}
