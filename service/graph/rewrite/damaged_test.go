package rewrite_test

import (
	"math/rand/v2"
	"testing"

	"github.com/pecan-ml/pecan/proto/reason"
	tf "github.com/pecan-ml/pecan/proto/tensorflow"
	"github.com/pecan-ml/pecan/service/graph"
	"github.com/pecan-ml/pecan/service/graph/graphtest"
	"github.com/pecan-ml/pecan/service/graph/nodedef"
	"github.com/pecan-ml/pecan/service/graph/rewrite"
	"github.com/pecan-ml/pecan/service/graph/split"
)

// mutate makes one small change after which the bytes are still a GraphDef. A random byte rarely does that.
func mutate(r *rand.Rand, def *tf.GraphDef) {
	nodes := def.Node
	if fs := def.GetLibrary().GetFunction(); len(fs) > 0 && r.IntN(3) == 0 {
		nodes = fs[r.IntN(len(fs))].NodeDef
	}
	if len(nodes) == 0 {
		return
	}
	n, other := nodes[r.IntN(len(nodes))], nodes[r.IntN(len(nodes))]
	numbers := []int64{-2, -1, 0, 1, 2, 3, 1 << 31, 1 << 62, -1 << 63}
	switch r.IntN(8) {
	case 0:
		if len(n.Input) > 0 {
			n.Input[r.IntN(len(n.Input))] = other.Name
		}
	case 1:
		n.Input = append(n.Input, other.Name)
	case 2:
		if len(n.Input) > 0 {
			n.Input = n.Input[:len(n.Input)-1]
		}
	case 3:
		n.Op = other.Op
	case 4:
		for key := range n.Attr {
			delete(n.Attr, key)
			break
		}
	case 5:
		for key, v := range other.Attr {
			if n.Attr != nil {
				n.Attr[key] = v
			}
		}
	case 6:
		if v := n.GetAttr()["value"].GetTensor(); v != nil {
			v.Int64Val = []int64{numbers[r.IntN(len(numbers))]}
		}
	case 7:
		if v := n.GetAttr()["value"].GetTensor(); v != nil {
			v.TensorContent = nil
			v.TensorShape = nodedef.Shape(numbers[r.IntN(len(numbers))])
		}
	}
}

func TestDamagedGraphsAreRefusedOrPlanned(t *testing.T) {
	for _, name := range []string{"map_batch", "filter_batch_map", "records", "slices", "zip", "nested_shuffle", "lookup", "hint", "padded", "endless_batch", "cache_file", "assert_cardinality"} {
		r := rand.New(rand.NewPCG(1, uint64(len(name))))
		for i := 0; i < 400; i++ {
			def := graphtest.Decode(t, graphtest.Read(t, name))
			for range 1 + r.IntN(3) {
				mutate(r, def)
			}
			g, err := graph.Parse(graphtest.Encode(t, def), graph.Limits{})
			if err != nil {
				if reason.Is(err, reason.Internal) {
					t.Fatalf("%s: the error has no reason code: %v", name, err)
				}
				continue
			}
			p, err := split.MakePlan(g, graphtest.Once, split.Env{})
			if err != nil {
				continue
			}
			for s := 0; s < min(2, int(p.NumStreams)); s++ {
				if _, err := rewrite.Instantiate(g, p, rewrite.At{Stream: s, Mode: graphtest.Once.Mode, Source: -1}); err != nil {
					t.Fatalf("%s: writing stream %d: %v", name, s, err)
				}
			}
		}
	}
}
