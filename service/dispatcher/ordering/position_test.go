package ordering_test

import (
	"slices"
	"strings"
	"testing"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/dispatcher/ordering"
	graphorder "github.com/pecan-ml/pecan/service/graph/order"
)

// A position comes from a trainer. Only an order that could have been decided for its job is accepted.
func TestAnOrderThatAPositionNamesIsOneThatThePolicyMightGive(t *testing.T) {
	const exact, approximate = pecanv1.OrderTolerance_ORDER_TOLERANCE_EXACT, pecanv1.OrderTolerance_ORDER_TOLERANCE_APPROXIMATE
	g := parse(t, read(t, "badly_ordered"))
	proposed := func(tolerance pecanv1.OrderTolerance) []string {
		asked := options(tolerance)
		proposal, err := ordering.Propose(g, plan(t, g, asked), asked, measured(g, badly))
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
		"the exact one":                 {proposed(exact), exact, ""},
		"the exact one, and more may":   {proposed(exact), approximate, ""},
		"the approximate one":           {proposed(approximate), approximate, ""},
		"the approximate one, in exact": {proposed(approximate), exact, "may not run before"},
		"the registered one":            {registered, approximate, "the registered order"},
		"all the other way round":       {first, approximate, "cannot move to position"},
		"the source last":               {second, approximate, "cannot move to position"},
		"steps of another dataset":      {[]string{"a", "b"}, approximate, "names 2 steps"},
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
