package order_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/pecan-ml/pecan/service/graph"
	"github.com/pecan-ml/pecan/service/graph/order"
)

func TestReorderingToTheRegisteredOrderKeepsTheDataset(t *testing.T) {
	files, err := os.ReadDir("../testdata")
	if err != nil {
		t.Fatal(err)
	}
	ordered := 0
	for _, file := range files {
		name, isGraph := strings.CutSuffix(filepath.Base(file.Name()), ".pb")
		if !isGraph {
			continue
		}
		data, err := os.ReadFile(filepath.Join("../testdata", file.Name()))
		if err != nil {
			t.Fatal(err)
		}
		g, err := graph.Parse(data, graph.Limits{})
		if err != nil {
			continue
		}
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
	files, err := filepath.Glob("../testdata/*.pb")
	if err != nil {
		t.Fatal(err)
	}
	tried := 0
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		g, err := graph.Parse(data, graph.Limits{})
		if err != nil {
			continue
		}
		traits, names := order.TraitsOf(g), order.Names(g)
		for i := 1; i < len(traits); i++ {
			// The last step of a branch and the first one of the next one.
			if traits[i].Begins && traits[i].Inside == "" && traits[i-1].Barrier == "" && traits[i].Barrier == "" {
				swapped := slices.Clone(names)
				swapped[i-1], swapped[i] = swapped[i], swapped[i-1]
				if _, err := order.Reorder(g, swapped); err == nil {
					t.Errorf("%s: %s and %s change places", file, names[i-1], names[i])
				}
				tried++
			}
		}
	}
	if tried == 0 {
		t.Error("no dataset has maps at the edges of its branches")
	}
}
