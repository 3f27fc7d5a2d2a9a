package order_test

import (
	"fmt"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	tf "github.com/pecan-ml/pecan/proto/tensorflow"
	"github.com/pecan-ml/pecan/service/graph"
	"github.com/pecan-ml/pecan/service/graph/graphtest"
	"github.com/pecan-ml/pecan/service/graph/order"
)

// The name of each step in the dataset lists its traits.
func TestTraitsAreFoundInFunctions(t *testing.T) {
	g := graphtest.Parse(t, "steps")
	steps := order.TraitsOf(g)
	if len(steps) != 16 {
		t.Fatalf("%d steps", len(steps))
	}
	for _, s := range steps[1:] {
		var metadata tf.Metadata
		if err := proto.Unmarshal(g.Node(s.Node).GetAttr()["metadata"].GetS(), &metadata); err != nil {
			t.Fatal(err)
		}
		want := string(metadata.GetName())
		for _, word := range []string{"captures_", "calls_", "_shuffles", "_adds", "nothing"} {
			want = strings.ReplaceAll(want, word, "")
		}
		if got := traitsText(s); got != want {
			t.Errorf("%s has the traits %q", metadata.GetName(), got)
		}
	}
}

// traitsText lists the traits of a step in the form of the step names in the test dataset.
func traitsText(s order.Traits) string {
	var out []string
	for _, trait := range []struct {
		is   bool
		word string
	}{{s.Random, "random"}, {s.Stateful, "stateful"}, {s.Drops, "drops"}, {s.Batches, "batches"}, {s.Passes, "passes"}, {s.Barrier != "", "barrier"}} {
		if trait.is {
			out = append(out, trait.word)
		}
	}
	for _, set := range []struct {
		of   []int
		word string
	}{{s.Reads, "reads"}, {s.Writes, "writes"}} {
		if len(set.of) > 0 {
			out = append(out, set.word+"_"+strings.Trim(strings.ReplaceAll(fmt.Sprint(set.of), " ", "_"), "[]"))
		}
	}
	return strings.Join(out, "_")
}

// Steps move past a candidate as past any step that returns its input, but not past one that freezes random values.
func TestOnlyMarksThatFreezeAreBarriers(t *testing.T) {
	for mark, barrier := range map[string]bool{"pecan_cache_candidate_here": false, "pecan_cache_frozen_here": true, "pecan_cache": true, "": false} {
		g, err := graph.Parse(graphtest.Marked(t, "cached", mark), graph.Limits{})
		if err != nil {
			t.Fatal(err)
		}
		found := false
		for _, s := range order.TraitsOf(g) {
			if s.Op != "TakeDataset" {
				continue
			}
			found = true
			if (s.Barrier != "") != barrier || s.Passes == barrier {
				t.Errorf("%q: %+v", mark, s)
			}
		}
		if !found {
			t.Errorf("%q: the mark is not a step", mark)
		}
		steps := order.TraitsOf(g)
		names := make([]string, len(steps))
		for i, s := range steps {
			names[i] = s.Node
		}
		// The maps before and after the mark change places.
		names[0], names[2] = names[2], names[0]
		if _, err := order.Reorder(g, names); (err != nil) != barrier {
			t.Errorf("%q: the maps change places: %v", mark, err)
		}
	}
}
