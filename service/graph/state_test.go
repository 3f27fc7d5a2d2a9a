package graph_test

import (
	"testing"

	"github.com/pecan-ml/pecan/service/graph/graphtest"
	"github.com/pecan-ml/pecan/service/graph/ops"
)

// TestNoOpMeetsAnotherDatasetsByName asks the registry for ops whose objects outlive a stream under a name: refused, or with a name of
// their own for each content or iterator.
func TestNoOpMeetsAnotherDatasetsByName(t *testing.T) {
	g := graphtest.Parse(t, "range")
	asked := 0
	for name, def := range g.Ops().All() {
		if g.Ops().NoCPU(name) || ops.AttrDef(def, "shared_name") == nil && ops.AttrDef(def, "container") == nil {
			continue
		}
		asked++
		switch refused := g.Refuses(name); {
		case name == "VarHandleOp":
			// Made outside of functions it is named by its value, inside it is refused without one.
		case ops.IsTable(name) && ops.AttrDef(def, "use_node_name_sharing") == nil:
			t.Errorf("%s makes a table that cannot be its node's own", name)
		case !ops.IsTable(name) && !refused:
			t.Errorf("%s finds objects of other jobs by their names, and is let through", name)
		}
	}
	if asked < 60 {
		t.Errorf("only %d ops have names", asked)
	}
}
