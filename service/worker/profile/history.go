package profile

import (
	"maps"
	"strings"

	"github.com/pecan-ml/pecan/proto/tensorflow"
)

// History is what a pooled iterator did in the streams before the current one. The meters of such an iterator count all
// its streams, and tf.data's model forgets the steps of a stream at its end. A short stream may end before the model was
// read. Its steps then get the usual time per element.
type History struct {
	counted, usual map[string]Counts
}

// Continue tells a profiler that its steps are the nested dataset of a pooled iterator with a history.
func (p *Profiler) Continue(h *History) {
	p.nested, p.before, p.usual = true, h.counted, h.usual
}

// Conclude adds the stream of a profiler to the history of its iterator. The last Read was after the end of the stream.
func (p *Profiler) Conclude(h *History) {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := map[string]Counts{}
	maps.Copy(all, h.counted)
	for name, counted := range p.counted {
		sum := all[name]
		sum.Add(counted)
		all[name] = sum
	}
	h.counted = all
	read := map[string]Counts{}
	maps.Copy(read, h.usual)
	for s, gone := range withInside(p.gone) {
		if gone.Elements > 0 {
			sum := read[s.name]
			sum.Add(gone)
			read[s.name] = sum
		}
	}
	h.usual = read
}

// sinceBefore returns what the meters counted in this run.
func (p *Profiler) sinceBefore(counted map[string]Counts) map[string]Counts {
	if len(p.before) == 0 {
		return counted
	}
	own := map[string]Counts{}
	for name, now := range counted {
		before := p.before[name]
		now.Elements -= min(now.Elements, before.Elements)
		now.Out -= min(now.Out, before.Out)
		own[name] = now
	}
	return own
}

// usualTime is the time that a step usually takes for a number of elements.
func (p *Profiler) usualTime(s *step, elements uint64) int64 {
	usual := p.usual[s.name]
	return int64(float64(usual.ns) * float64(elements) / float64(max(1, usual.Elements)))
}

// usualBytes is how many bytes a step usually gives for a number of elements.
func (p *Profiler) usualBytes(s *step, elements uint64) uint64 {
	if s.bytes > 0 {
		return elements * s.bytes
	}
	usual := p.usual[s.name]
	return uint64(float64(usual.Out) * float64(elements) / float64(max(1, usual.Elements)))
}

// nestedIn returns the model's node of the dataset that the flat_map of a pooled graph has open; 0 without one.
func nestedIn(model *tensorflow.ModelProto, id int64) int64 {
	for range model.GetNodes() {
		node := model.GetNodes()[id]
		inputs := node.GetInputs()
		if strings.HasPrefix(node.GetName(), "FlatMap") {
			if len(inputs) < 2 {
				return 0
			}
			return inputs[len(inputs)-1]
		}
		if len(inputs) == 0 {
			return 0
		}
		id = inputs[0]
	}
	return 0
}
