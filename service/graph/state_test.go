package graph_test

import (
	"testing"

	"github.com/pecan-ml/pecan/service/graph/graphtest"
	"github.com/pecan-ml/pecan/service/graph/ops"
)

// The registry contains ops whose objects outlive a stream and are found by name. Each such op must be
// refused, or must have its own name for each content or iterator.
func TestNoOpFindsObjectsOfOtherDatasetsByName(t *testing.T) {
	g := graphtest.Parse(t, "range")
	checked := 0
	for name, def := range g.Ops().All() {
		if g.Ops().NoCPU(name) || ops.AttrDef(def, "shared_name") == nil && ops.AttrDef(def, "container") == nil {
			continue
		}
		checked++
		switch refused := g.Refuses(name); {
		case name == "VarHandleOp":
			// A table outside of functions gets its name from its content. A table inside a function is
			// refused without content.
		case ops.IsTable(name) && ops.AttrDef(def, "use_node_name_sharing") == nil:
			t.Errorf("%s creates a table that its node may share with others", name)
		case !ops.IsTable(name) && !refused:
			t.Errorf("%s finds objects of other jobs by name, but is not refused", name)
		}
	}
	if checked < 60 {
		t.Errorf("only %d ops have names", checked)
	}
}
