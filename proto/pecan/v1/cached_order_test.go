package pecanv1_test

import (
	"testing"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
)

func TestTheKeyOfACacheHasTheOrderOfItsSteps(t *testing.T) {
	// Read is a source, which orders do not list.
	decoded := &pecanv1.CachePlan{Node: "crop", Key: "k", Upstream: []string{"crop", "flip", "decode", "read"}, Parts: 7, Packed: true}
	for _, c := range []struct {
		name, last  string
		order       []string
		same, moved bool
	}{
		{"the registered order", "crop", nil, true, false},
		{"the registered order, listed", "crop", []string{"decode", "flip", "crop", "mix", "batch"}, true, false},
		{"other steps downstream", "crop", []string{"decode", "flip", "crop", "batch", "mix"}, true, false},
		{"another order upstream", "flip", []string{"decode", "crop", "flip", "mix", "batch"}, false, false},
		{"a step downstream moves upstream", "", []string{"decode", "mix", "flip", "crop", "batch"}, false, true},
		{"the step itself moves upstream of others", "", []string{"crop", "mix", "decode", "flip", "batch"}, false, true},
	} {
		in, last := decoded.InOrder(c.order)
		if (in == nil) != c.moved || last != c.last || (in.GetKey() == decoded.Key) != c.same {
			t.Errorf("%s: %v after %q", c.name, in, last)
		}
		if in != nil && (in.Node != "crop" || in.Parts != 7 || !in.Packed) {
			t.Errorf("%s: %v is stored in another way", c.name, in)
		}
		if decoded.SameInOrders(nil, c.order) != c.same {
			t.Errorf("%s: the same as the registered one: %v", c.name, !c.same)
		}
	}
	better, worse := []string{"decode", "crop", "flip", "mix"}, []string{"crop", "decode", "flip", "mix"}
	if decoded.SameInOrders(better, worse) {
		t.Error("two orders have one key")
	}
	// A graph that differs only downstream has other names.
	other := &pecanv1.CachePlan{Node: "crop2", Key: "k", Upstream: []string{"crop2", "flip2", "decode2", "read2"}}
	one, _ := decoded.InOrder(better)
	two, _ := other.InOrder([]string{"decode2", "crop2", "flip2", "resize2"})
	if one.Key != two.GetKey() {
		t.Error("equal orders of equal steps have two keys")
	}
	seeded := &pecanv1.CachePlan{Node: "crop", Key: "k2", Upstream: decoded.Upstream, Seeded: true}
	if in, _ := seeded.InOrder(better); in.Key == one.Key || !in.Seeded {
		t.Errorf("the key of other steps: %v", in)
	}
	if in, last := (*pecanv1.CachePlan)(nil).InOrder(better); in != nil || last != "" {
		t.Errorf("without a step: %v after %q", in, last)
	}
}

func TestACachedStepDownstreamOfFunctionsBranchesAndShuffles(t *testing.T) {
	cached := &pecanv1.CachePlan{Node: "crop", Key: "k", Upstream: []string{"crop", "interleave", "interleave:parse", "interleave:decode", "files"}}
	branch := &pecanv1.CachePlan{Node: "crop", Key: "k", Upstream: []string{"crop", "flip", "read"}, Before: 2}
	late := &pecanv1.CachePlan{Node: "crop", Key: "k", Upstream: []string{"crop", "flip", "decode"}, LateAfter: "crop"}
	for _, c := range []struct {
		name, last  string
		step        *pecanv1.CachePlan
		order       []string
		same, moved bool
	}{
		{"functions: other steps downstream", "crop", cached, []string{"interleave:decode", "interleave:parse", "interleave", "crop", "b", "a"}, true, false},
		{"functions: another order inside", "crop", cached, []string{"interleave:parse", "interleave:decode", "interleave", "crop", "a"}, false, false},
		{"functions: a step moves upstream", "", cached, []string{"interleave:decode", "interleave:parse", "interleave", "a", "crop"}, false, true},
		{"a second branch: another order in the first one", "crop", branch, []string{"y", "x", "flip", "crop", "zip"}, true, false},
		{"a second branch: another order in it", "flip", branch, []string{"x", "y", "crop", "flip", "zip"}, false, false},
		{"a second branch: a step moves across", "", branch, []string{"x", "y", "a", "flip", "crop", "zip"}, false, true},
		{"a second branch: an order without it", "", branch, []string{"flip", "crop"}, false, true},
		{"a shuffle after the last step", "crop", late, []string{"flip", "decode", "crop", "mix"}, false, false},
		{"a shuffle before the last step", "", late, []string{"decode", "crop", "flip", "mix"}, false, true},
	} {
		in, last := c.step.InOrder(c.order)
		if (in == nil) != c.moved || last != c.last || (in.GetKey() == "k") != c.same {
			t.Errorf("%s: %v after %q", c.name, in, last)
		}
	}
}
