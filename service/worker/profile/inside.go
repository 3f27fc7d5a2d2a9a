package profile

import (
	"cmp"
	"slices"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/proto/tensorflow"
	"github.com/pecan-ml/pecan/service/graph/ops"
	"github.com/pecan-ml/pecan/service/worker/dataset"
)

// inFunction separates the name of a step from that of a step inside its function.
const inFunction = ":"

// minInside is the number of maps and filters from which on the steps of a function are measured. Fewer have one order only.
const minInside = 2

// callsDatasets reports whether a step reads the datasets that its function returns.
func callsDatasets(op string) bool {
	return ops.Rules[op].Kind == ops.PerElement && ops.FunctionAttr(op) == "f"
}

// insideOf returns the last step of the dataset that a function returns. The names of its steps begin with that of the
// step caller. It is nil if fewer than minInside of these steps are maps or filters. steps counts the steps of all
// functions of a tree, which call each other from many places.
func insideOf(serialised []byte, function, caller string, steps *int) *step {
	f := dataset.Function(serialised, function)
	if f == nil || len(f.GetRet()) != 1 {
		return nil
	}
	nodes := map[string]*tensorflow.NodeDef{}
	for _, n := range f.GetNodeDef() {
		nodes[n.GetName()] = n
	}
	var last *tensorflow.NodeDef
	for _, result := range f.GetRet() {
		last = nodes[dataset.NodeOf(result)]
	}
	for last.GetOp() == "Identity" && len(last.GetInput()) > 0 {
		last = nodes[dataset.NodeOf(last.GetInput()[0])]
	}
	movable := 0
	var add func(n *tensorflow.NodeDef) *step
	add = func(n *tensorflow.NodeDef) *step {
		if *steps++; n == nil || !isDataset(n.GetOp()) || *steps > maxProfiled {
			return nil
		}
		s := &step{name: caller + inFunction + n.GetName(), op: n.GetOp()}
		if ops.ElementFunctionAttr(s.op) != "" {
			movable++
		}
		if called := n.GetAttr()["f"].GetFunc().GetName(); callsDatasets(s.op) && called != "" {
			if s.inside = insideOf(serialised, called, s.name, steps); s.inside != nil {
				movable += minInside
			}
		}
		for _, input := range n.GetInput() {
			if upstream := add(nodes[dataset.NodeOf(input)]); upstream != nil {
				s.inputs = append(s.inputs, upstream)
			}
		}
		return s
	}
	if root := add(last); movable >= minInside {
		return root
	}
	return nil
}

// withInside adds the times of the steps in the functions of steps to those of the steps. Metrics of a step have the times of
// its function.
func withInside(read map[*step]Counts) map[*step]Counts {
	sums := map[*step]Counts{}
	for s, own := range read {
		for caller := s; caller != nil; caller = caller.caller {
			sum := sums[caller]
			if caller == s {
				sum.Add(own)
			} else {
				sum.ns += own.ns
			}
			sums[caller] = sum
		}
	}
	return sums
}

// insideMetrics returns the metrics of the steps upstream of a step in a function, and of that step, multiplied by scale.
func insideMetrics(s *step, read map[*step]Counts, scale float64) (all []*pecanv1.NodeMetrics) {
	sum := read[s]
	own := &pecanv1.NodeMetrics{
		Node: s.name, Op: s.op, Elements: scaledCount(sum.Elements, scale), SelfCpuS: float64(sum.ns) / 1e9 * scale, BytesOut: scaledCount(sum.Out, scale),
	}
	if s.inside != nil {
		own.Inside, own.InsideElements = insideMetrics(s.inside, read, scale), scaledCount(read[s.inside].Elements, scale)
	}
	all = append(all, own)
	for _, input := range s.inputs {
		own.BytesIn += scaledCount(read[input].Out, scale)
		all = append(all, insideMetrics(input, read, scale)...)
	}
	slices.SortFunc(all, func(a, b *pecanv1.NodeMetrics) int { return cmp.Compare(a.Node, b.Node) })
	return all
}

func scaledCount(count uint64, scale float64) uint64 { return uint64(float64(count)*scale + 0.5) }
