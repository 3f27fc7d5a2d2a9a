package profile

import (
	"maps"
	"slices"
	"strings"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/graph/rewrite"
)

// readCounts is what the steps did up to the last reading of each model node.
func (p *Profiler) readCounts() map[*step]Counts {
	read := maps.Clone(p.gone)
	for _, r := range p.seen {
		sum := read[r.of]
		sum.Add(r.Counts)
		read[r.of] = sum
	}
	return read
}

// stepCounts is what the steps did, from what was read. The model forgets nodes, so a step's time is scaled: the elements after
// its last reading count with the time per element of that reading.
func (p *Profiler) stepCounts(read map[*step]Counts) map[*step]Counts {
	sums := withInside(read)
	for _, s := range p.steps {
		if !p.metered[s.name] {
			continue
		}
		sum, counted := sums[s], p.counted[s.name]
		if sum.Elements == 0 {
			sum.ns = p.usualTime(s, counted.Elements)
		} else if counted.Elements > sum.Elements {
			sum.ns = int64(float64(sum.ns) * float64(counted.Elements) / float64(sum.Elements))
		}
		sum.Elements, sum.Out = counted.Elements, counted.Out
		sums[s] = sum
	}
	if p.ended {
		p.countKept(sums)
	}
	p.derive(sums)
	for s := p.root; p.batch != nil; s = s.inputs[0] {
		sum := sums[s]
		sum.Elements -= min(sum.Elements, p.remainder.Elements)
		sum.Out -= min(sum.Out, p.remainder.Out)
		sums[s] = sum
		if s == p.batch {
			break
		}
	}
	return sums
}

// countKept completes the counts of the steps that the model forgot at the end of a pooled stream, by the elements that
// the stream gave. Bytes and time are scaled from the elements that were read.
func (p *Profiler) countKept(sums map[*step]Counts) {
	for _, s := range p.kept {
		elements := p.given
		if s != p.root {
			elements += p.failed
		}
		// A fill during which the stream ends has not counted its elements yet.
		sums[s] = p.scaled(s, sums[s], max(elements, sums[s].Elements))
	}
}

// scaled returns the counts of a step for more elements than were read.
func (p *Profiler) scaled(s *step, sum Counts, elements uint64) Counts {
	if sum.Elements == 0 {
		sum.Out, sum.ns = p.usualBytes(s, elements), p.usualTime(s, elements)
	} else if elements > sum.Elements {
		more := float64(elements) / float64(sum.Elements)
		sum.ns, sum.Out = int64(float64(sum.ns)*more), uint64(float64(sum.Out)*more)
	}
	sum.Elements = elements
	return sum
}

// derive completes the counts of one-for-one steps whose nodes the model forgot. Such a step gave as many
// elements as its input, because an iterator is dropped only after all its elements were taken. Bytes and time
// are scaled from the elements that were read.
func (p *Profiler) derive(sums map[*step]Counts) {
	live, known := map[*step]bool{}, map[*step]bool{}
	for _, r := range p.seen {
		live[r.of] = true
	}
	for _, s := range p.steps {
		switch {
		case p.metered[s.name], p.ended && slices.Contains(p.kept, s):
			known[s] = true
		case len(s.inputs) == 0 || !known[s.inputs[0]] || live[s] && s.op != "OptionsDataset":
		case rewrite.OneForOne(s.op):
			known[s] = true
			sums[s] = p.scaled(s, sums[s], sums[s.inputs[0]].Elements)
		}
	}
}

// bytesGiven is how many bytes a step gave to the step that reads it.
func (p *Profiler) bytesGiven(s *step, sums map[*step]Counts) uint64 {
	original := rewrite.OriginalNode(s.name)
	if s.op == "OptionsDataset" {
		original = ""
	}
	inBlocks := original != s.name && len(s.inputs) == 1 && s.inputs[0].name == original && p.metered[original] && !strings.HasSuffix(s.name, "/shard")
	if original != "" && !inBlocks || s.name == rewrite.PullNode && p.Relay {
		return sums[s].Out
	}
	sum := uint64(0)
	for _, input := range s.inputs {
		sum += p.bytesGiven(input, sums)
	}
	return sum
}

// nodeMetrics sums the counts per node of the registered graph. Steps that Pecan added count as time of the node
// they stand for.
func (p *Profiler) nodeMetrics() []*pecanv1.NodeMetrics {
	read := p.readCounts()
	sums := p.stepCounts(read)
	inclusive := withInside(read)
	byName := map[string]*pecanv1.NodeMetrics{}
	var out []*pecanv1.NodeMetrics
	for _, s := range p.steps {
		name := rewrite.OriginalNode(s.name)
		if name == "" || s.op == "OptionsDataset" {
			continue
		}
		metrics := byName[name]
		if metrics == nil {
			metrics = &pecanv1.NodeMetrics{Node: name, Op: p.nodes.Ops[name]}
			byName[name] = metrics
			out = append(out, metrics)
		}
		sum := sums[s]
		metrics.SelfCpuS += float64(sum.ns) / 1e9
		if name != s.name {
			continue
		}
		if metrics.Op == "" {
			metrics.Op = s.op
		}
		metrics.Elements, metrics.BytesOut = sum.Elements, sum.Out
		for _, input := range s.inputs {
			metrics.BytesIn += p.bytesGiven(input, sums)
		}
		if len(s.inputs) == 0 {
			metrics.BytesIn = sum.consumed
		}
		if before := inclusive[s].ns; s.inside != nil && before > 0 {
			scale := float64(sum.ns) / float64(before)
			metrics.Inside, metrics.InsideElements = insideMetrics(s.inside, read, scale), scaledCount(read[s.inside].Elements, scale)
		}
	}
	return append(out, p.passedMetrics(byName)...)
}

// passedMetrics returns the metrics of steps that the graph leaves out, because they only pass elements on. byName has the others.
func (p *Profiler) passedMetrics(byName map[string]*pecanv1.NodeMetrics) (out []*pecanv1.NodeMetrics) {
	for _, name := range slices.Sorted(maps.Keys(p.nodes.Passed)) {
		from := p.nodes.Passed[name]
		for p.nodes.Passed[from] != "" {
			from = p.nodes.Passed[from]
		}
		if given := byName[from]; given != nil && byName[name] == nil {
			out = append(out, &pecanv1.NodeMetrics{
				Node: name, Op: p.nodes.Ops[name], Elements: given.Elements, BytesIn: given.BytesOut, BytesOut: given.BytesOut,
			})
		}
	}
	return out
}

// Metrics returns the metrics of the last Read.
func (p *Profiler) Metrics() []*pecanv1.NodeMetrics {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.last
}
