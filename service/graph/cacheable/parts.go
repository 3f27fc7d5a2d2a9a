package cacheable

import (
	"fmt"
	"strings"

	"github.com/pecan-ml/pecan/service/graph"
	"github.com/pecan-ml/pecan/service/graph/ops"
)

// A cache has a segment for each part of the source (service/graph/split). That requires that each step between the source
// and the cached step gives the elements of a part from that part alone, in any job. Steps that only order are left out of
// the streams, and their effect comes after reading: parts are read in another order.

// OnParts says what a step does with parts. orders is true if the step only orders. why is the reason why the step mixes
// parts; it is "" if the step does not. listed is true if the input is a constant list of strings, in any order.
func (r *Rules) OnParts(s *graph.Step, listed bool) (orders bool, why string) {
	f, name := r.Facts(s), s.Node.GetName()
	switch s.Rule.Kind {
	case ops.Shuffled:
		_, seeded := r.g.InputInt(s.Node, "seed")
		_, seeded2 := r.g.InputInt(s.Node, "seed2")
		if listed && seeded && seeded2 && strings.HasPrefix(s.Node.GetOp(), "ShuffleDataset") {
			return true, ""
		}
		return false, fmt.Sprintf("%s mixes the elements of all parts. Move it after the cached step", name)
	case ops.OneToOne, ops.PassThrough, ops.PerElement, ops.Batched:
	default:
		return false, fmt.Sprintf("%s may use elements of several parts", name)
	}
	switch {
	case f.Random || f.Seeded || r.takesSeeds(s):
		return false, fmt.Sprintf("%s draws random values, in another way in each stream", name)
	case !f.Pure() || f.Endless:
		return false, fmt.Sprintf("%s may use elements of several parts", name)
	case s.Rule.Mixes && !r.readsOneByOne(s):
		return false, fmt.Sprintf("%s mixes the elements of all parts", name)
	}
	return s.Rule.Mixes, ""
}

// readsOneByOne reports whether a step that mixes datasets can read one after another.
func (r *Rules) readsOneByOne(s *graph.Step) bool {
	_, constant := r.g.InputInt(s.Node, "num_parallel_calls")
	return r.g.InputIndex(s.Node, "cycle_length") >= 0 && (constant || r.g.InputIndex(s.Node, "num_parallel_calls") < 0)
}
