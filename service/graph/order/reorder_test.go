package order_test

import (
	"slices"
	"testing"

	"github.com/pecan-ml/pecan/service/graph"
	"github.com/pecan-ml/pecan/service/graph/graphtest"
	"github.com/pecan-ml/pecan/service/graph/order"
)

func TestReorderingToTheRegisteredOrderKeepsTheDataset(t *testing.T) {
	ordered := 0
	for name, g := range graphtest.All(t) {
		var names []string
		for _, s := range order.TraitsOf(g) {
			names = append(names, s.Node)
		}
		again, err := order.Reorder(g, names)
		if _, isTree := g.Steps(); !isTree {
			if err == nil {
				t.Errorf("%s reads a node twice, and Reorder returned no error", name)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		ordered++
		written, err := again.Serialized()
		if err != nil {
			t.Fatal(err)
		}
		if read, err := graph.Parse(written, graph.Limits{}); err != nil || read.Fingerprint() != g.Fingerprint() {
			t.Errorf("%s: the fingerprint changed (%v)", name, err)
		}
	}
	if ordered < 50 {
		t.Errorf("only %d datasets were reordered", ordered)
	}
}

func TestNoStepLeavesItsBranch(t *testing.T) {
	tried := 0
	for name, g := range graphtest.All(t) {
		traits, names := order.TraitsOf(g), order.Names(g)
		for i := 1; i < len(traits); i++ {
			// The two steps are the last step of a branch and the first step of the next branch.
			if traits[i].Begins && traits[i].Inside == "" && traits[i-1].Barrier == "" && traits[i].Barrier == "" {
				swapped := slices.Clone(names)
				swapped[i-1], swapped[i] = swapped[i], swapped[i-1]
				if _, err := order.Reorder(g, swapped); err == nil {
					t.Errorf("%s: %s and %s change places", name, names[i-1], names[i])
				}
				tried++
			}
		}
	}
	if tried == 0 {
		t.Error("no dataset has maps at the edges of its branches")
	}
}
