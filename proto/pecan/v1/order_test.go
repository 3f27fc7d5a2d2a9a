package pecanv1_test

import (
	"slices"
	"testing"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
)

func TestAnOrderIsReadAsItWasWritten(t *testing.T) {
	plan := &pecanv1.Plan{Hash: "h"}
	order, steps := []string{"c", "a", "d", "b"}, []string{"a", "b", "c", "d"}
	written := func() *pecanv1.EpochOrder { return pecanv1.NewEpochOrder(plan, order) }
	if got, err := written().Names(plan, steps); err != nil || !slices.Equal(got, order) {
		t.Errorf("it is read as %v, %v", got, err)
	}
	if registered := pecanv1.NewEpochOrder(plan, nil); registered.Hash != "" || len(registered.Steps) > 0 {
		t.Errorf("the registered one is %v", registered)
	}
	for name, change := range map[string]func(o *pecanv1.EpochOrder){
		"a step too few":        func(o *pecanv1.EpochOrder) { o.Steps = o.Steps[1:] },
		"a step too many":       func(o *pecanv1.EpochOrder) { o.Steps = append(o.Steps, 0) },
		"a step that is none":   func(o *pecanv1.EpochOrder) { o.Steps[0] = 1<<32 - 1 },
		"a step twice":          func(o *pecanv1.EpochOrder) { o.Steps[0] = o.Steps[1] },
		"another order":         func(o *pecanv1.EpochOrder) { slices.Reverse(o.Steps) },
		"no hash":               func(o *pecanv1.EpochOrder) { o.Hash = "" },
		"no steps":              func(o *pecanv1.EpochOrder) { o.Steps = nil },
		"an order of that plan": func(o *pecanv1.EpochOrder) { o.Hash = pecanv1.OrderHash(&pecanv1.Plan{Hash: "h2"}, order) },
	} {
		o := written()
		change(o)
		if got, err := o.Names(plan, steps); err == nil {
			t.Errorf("%s: %v", name, got)
		}
	}
}

func TestTheDefaultToleranceFollowsFromModeAndOrder(t *testing.T) {
	const exact, approximate, any = pecanv1.OrderTolerance_ORDER_TOLERANCE_EXACT, pecanv1.OrderTolerance_ORDER_TOLERANCE_APPROXIMATE, pecanv1.OrderTolerance_ORDER_TOLERANCE_ANY
	for _, c := range []struct {
		mode       pecanv1.Mode
		order      pecanv1.Order
		said, want pecanv1.OrderTolerance
	}{
		{pecanv1.Mode_MODE_EXACTLY_ONCE, pecanv1.Order_ORDER_AUTO, 0, approximate},
		{pecanv1.Mode_MODE_DETERMINISTIC, pecanv1.Order_ORDER_AUTO, 0, exact},
		{pecanv1.Mode_MODE_DETERMINISTIC, pecanv1.Order_ORDER_AUTO, approximate, approximate},
		{pecanv1.Mode_MODE_DETERMINISTIC, pecanv1.Order_ORDER_PAPER, 0, any},
		{pecanv1.Mode_MODE_EXACTLY_ONCE, pecanv1.Order_ORDER_PAPER_UNGUARDED, 0, any},
		{pecanv1.Mode_MODE_AT_LEAST_ONCE, pecanv1.Order_ORDER_AUTO, exact, exact},
	} {
		if got := (&pecanv1.JobOptions{Mode: c.mode, Order: c.order, OrderTolerance: c.said}).EffectiveTolerance(); got != c.want {
			t.Errorf("%v %v %v: %v, want %v", c.mode, c.order, c.said, got, c.want)
		}
	}
}
