package dataflow_test

import (
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	tf "github.com/pecan-ml/pecan/proto/tensorflow"
	"github.com/pecan-ml/pecan/service/graph/dataflow"
	"github.com/pecan-ml/pecan/service/graph/graphtest"
)

// The names of the steps in the test data say what the steps do to images. "changes_of_any_size" has images
// of unknown size.
func TestTheChangeOfAFunctionIsFoundInItsGraph(t *testing.T) {
	for _, name := range []string{"changes", "changes_of_any_size"} {
		g := graphtest.Parse(t, name)
		steps := 0
		for _, n := range g.Order() {
			var metadata tf.Metadata
			if err := proto.Unmarshal(n.GetAttr()["metadata"].GetS(), &metadata); err != nil {
				t.Fatal(err)
			}
			want, what, is := strings.Cut(string(metadata.GetName()), "__")
			if !is {
				continue
			}
			steps++
			c := dataflow.ChangeOf(g, n.GetAttr()["f"].GetFunc().GetName(), 0, g.OutputShapes(g.NodeOf(n.GetInput()[0]))[0])
			if got := changeWords(c); got != want {
				t.Errorf("%s: %s: %q, want %q; %s", name, what, got, want, c.Opaque)
			}
		}
		if steps != 39 {
			t.Errorf("%s has %d steps", name, steps)
		}
	}
}

// changeWords describes a change in the words that the names of the test steps use.
func changeWords(c dataflow.Change) string {
	if c.Opaque != "" {
		return "opaque"
	}
	var words []string
	// The inserted constants are values that the component did not have.
	if c.Computes || len(c.Inserts) > 0 {
		words = append(words, "computes")
		if c.Affine {
			words = append(words, "affine")
		}
	}
	for _, set := range []struct {
		word string
		of   dataflow.Dims
	}{{"position", c.PositionDependent}, {"moves", c.Moves}, {"mixes", c.Mixes}, {"size", c.DependsOnSize}} {
		if set.of != 0 {
			words = append(words, set.word+"_"+strings.ReplaceAll(set.of.String(), ",", "_"))
		}
	}
	return strings.Join(words, "_")
}
