package dataset

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	graphorder "github.com/pecan-ml/pecan/service/graph/order"

	"github.com/pecan-ml/pecan/service/graph"
)

func TestOrdersAreCachedAndInvalidOnesAreRefused(t *testing.T) {
	store := NewStore(func(_ context.Context, name string) ([]byte, error) {
		return os.ReadFile(filepath.Join("..", "testdata", "order_"+name+".graph"))
	})
	known, err := store.find(t.Context(), "streams")
	if err != nil {
		t.Fatal(err)
	}
	var steps []string
	for _, step := range graphorder.TraitsOf(known.parsed) {
		steps = append(steps, step.Node)
	}
	ordered := func(places ...int) (out []string) {
		for _, place := range places {
			out = append(out, steps[place])
		}
		return out
	}
	orders := [][]string{steps, ordered(0, 2, 1, 3, 4, 5, 6, 7), ordered(0, 1, 2, 3, 4, 6, 5, 7)}
	var graphs []*graph.Graph
	for _, order := range orders {
		for range 2 {
			g, err := known.inOrder(order)
			if err != nil {
				t.Fatal(err)
			}
			graphs = append(graphs, g)
		}
	}
	for i := range orders {
		if graphs[2*i] != graphs[2*i+1] || graphs[2*i].Fingerprint() != known.parsed.Fingerprint() {
			t.Errorf("order %d is not kept, or of another dataset", i)
		}
	}
	if len(known.ordered) != maxOrders || !slices.Equal(known.ordered[0].order, orders[2]) {
		t.Errorf("%d orders are kept", len(known.ordered))
	}
	_, err = known.inOrder(ordered(0, 4, 2, 3, 1, 5, 6, 7))
	if err == nil || !strings.Contains(err.Error(), "only maps and filters move") {
		t.Errorf("past what is kept: %v", err)
	}
}
