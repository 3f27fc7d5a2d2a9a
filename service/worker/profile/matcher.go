package profile

import (
	"regexp"
	"strings"

	"github.com/pecan-ml/pecan/proto/tensorflow"
)

// matcher finds the largest set of pairs of a step and a model node that preserves ancestors.
type matcher struct {
	model map[int64]*tensorflow.ModelProto_Node
	best  map[pair]match
}

type pair struct {
	s  *step
	id int64
}

// match is the best result for a pair of subtrees: how many nodes match, and the pairs to continue with.
type match struct {
	count int
	same  bool
	// next are the pairs to continue with.
	next []pair
}

// find compares the subtree of a step with the subtree of a node of the model. Either side may have nodes that the other
// lacks, so it also tries the inputs of both.
func (m *matcher) find(s *step, id int64) match {
	node := m.model[id]
	if s == nil || node == nil {
		return match{}
	}
	key := pair{s, id}
	if known, ok := m.best[key]; ok {
		return known
	}
	// This entry is set before the recursion, so that a cycle in a broken model ends.
	m.best[key] = match{}
	var best match
	if kindOf(s.op) == kindOf(node.GetName()) {
		best = match{count: 1, same: true}
		for i, input := range node.GetInputs() {
			// The first input is missing when it has ended. Further inputs of an interleave are the datasets of its function.
			next := pair{s.inside, input}
			if i < len(s.inputs) && (s.inside == nil || m.find(s.inputs[i], input).count >= m.find(s.inside, input).count) {
				next.s = s.inputs[i]
			}
			best.count += m.find(next.s, next.id).count
			best.next = append(best.next, next)
		}
	}
	for _, input := range s.inputs {
		if c := m.find(input, id).count; c > best.count {
			best = match{count: c, next: []pair{{input, id}}}
		}
	}
	for _, input := range node.GetInputs() {
		if c := m.find(s, input).count; c > best.count {
			best = match{count: c, next: []pair{{s, input}}}
		}
	}
	m.best[key] = best
	return best
}

func (m *matcher) assign(s *step, id int64, to map[int64]*step) {
	found := m.find(s, id)
	if found.same {
		to[id] = s
	}
	for _, next := range found.next {
		m.assign(next.s, next.id, to)
	}
}

var versionSuffix = regexp.MustCompile(`V[0-9]+$`)

// formPrefix matches how the model distinguishes the forms of a few ops.
var formPrefix = regexp.MustCompile(`^(?:Finite|Forever|Empty|Memory|File)(Repeat|Take|Skip|Cache)`)

// kindOf normalises the name of an op ("ParallelMapDatasetV2") and of its node in the model ("ParallelMapV2", or
// "ParallelMapV2(id:7)") to the same string. An op and its parallel form are the same kind, because TensorFlow
// may replace one by the other.
func kindOf(name string) string {
	name, _, _ = strings.Cut(name, "(")
	name = strings.Replace(name, "Dataset", "", 1)
	name = versionSuffix.ReplaceAllString(name, "")
	name = strings.TrimPrefix(strings.TrimPrefix(name, "Legacy"), "Parallel")
	return formPrefix.ReplaceAllString(name, "$1")
}
