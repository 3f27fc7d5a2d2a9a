package dataset

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"github.com/pecan-ml/pecan/service/graph/rewrite"
	"github.com/pecan-ml/pecan/service/graph/split"

	"github.com/pecan-ml/pecan/native/tf"
	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/graph"
)

// lookup returns the graphs of an undivided dataset with a table and a variable.
func lookup(t *testing.T) *rewrite.StreamGraphs {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("..", "..", "graph", "testdata", "lookup.pb"))
	if err != nil {
		t.Fatal(err)
	}
	parsed, err := graph.Parse(data, graph.PeerLimits())
	if err != nil {
		t.Fatal(err)
	}
	plan, err := split.MakePlan(parsed, &pecanv1.JobOptions{Mode: pecanv1.Mode_MODE_OFF}, split.Env{})
	if err != nil {
		t.Fatal(err)
	}
	graphs, err := rewrite.Instantiate(parsed, plan, rewrite.At{Mode: plan.GetMode()})
	if err != nil {
		t.Fatal(err)
	}
	return graphs
}

func TestATableIsFreedWithItsLastUser(t *testing.T) {
	runtime, err := tf.NewContext(tf.ContextOptions{InterOpThreads: 2, IntraOpThreads: 2})
	if err != nil {
		t.Fatal(err)
	}
	defer runtime.Close()
	tables, graphs := NewTables(slog.New(slog.DiscardHandler)), lookup(t)
	if len(graphs.Shared) != 2 {
		t.Fatalf("a table and a variable are %d to free", len(graphs.Shared))
	}
	leave := tables.Use(runtime, graphs.Shared)
	types, err := OutputTypes(graphs.A)
	if err != nil {
		t.Fatal(err)
	}
	it, err := runtime.NewIterator(graphs.A, types)
	if err != nil {
		t.Fatal(err)
	}
	next := func() error {
		element, err := it.Next()
		tf.ReleaseAll(element)
		return err
	}
	// Other datasets come and go that use one of the two each.
	for _, one := range graphs.Shared {
		tables.Use(runtime, []rewrite.Shared{one})()
	}
	tables.mu.Lock()
	for _, set := range tables.unused {
		tables.drop(set)
	}
	tables.unused = nil
	tables.mu.Unlock()
	if err := next(); err != nil {
		t.Fatalf("what is used was freed: %v", err)
	}
	if err := freeTables(runtime, graphs.Shared); err != nil {
		t.Fatal(err)
	}
	if failed := (*tf.Error)(nil); !errors.As(next(), &failed) {
		t.Error("what was freed is still there")
	}
	it.Close()
	leave()
}
