package ordering

import (
	"slices"

	"github.com/pecan-ml/pecan/policies/autoorder"
	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	tf "github.com/pecan-ml/pecan/proto/tensorflow"
	"github.com/pecan-ml/pecan/service/graph/dataflow"
	graphorder "github.com/pecan-ml/pecan/service/graph/order"
)

// callSeconds is the fixed time of a step's call. The rest of its time grows with its input.
const callSeconds = 10e-6

// near is how far a measured factor may be from 1 and still count as 1: the elements before and after a step are
// not quite the same ones.
const near = 0.05

// describe describes the steps to the policy.
func (p *proposer) describe() {
	p.Constraints = map[[2]int]string{}
	if len(p.steps) == 0 {
		return
	}
	first := p.step(0)
	at := components(first.Before, p.bytesAfter(first.Input))
	p.Source = at
	divided := p.belowCut()
	for i := range p.steps {
		t := p.step(i)
		s := autoorder.Step{Name: p.name(i), Reads: t.Reads, Figures: p.measuredFigures(t)}
		s.Fixed = p.fixed(t, divided[i], &s.Figures)
		after := at
		if s.Fixed != "" {
			s.After = components(t.After, p.bytesAfter(t.Node))
			after = s.After
		} else {
			if t.Batches {
				s.Reads, s.Copies, s.Writes = t.Writes, true, rowsOf(t, s.ElementsIn/s.ElementsOut)
			} else {
				s.Writes = p.writes(t, at)
			}
			after = slices.Clone(at)
			for _, w := range s.Writes {
				apply(w, after)
			}
			s.Slow = slices.ContainsFunc(t.Writes, func(c int) bool {
				return tf.DataType(t.After[c].GetDtype()) == tf.DataType_DT_BFLOAT16 && t.Before[c].GetDtype() != t.After[c].GetDtype()
			})
		}
		s.BytesIn, s.BytesOut = s.ElementsIn*bytesOf(at), s.ElementsOut*bytesOf(after)
		s.FixedShare = 1
		if each := s.Seconds / s.ElementsIn; s.ElementsIn > 0 && each > callSeconds {
			s.FixedShare = callSeconds / each
		}
		p.Steps = append(p.Steps, s)
		at = after
	}
	p.findConstraints()
}

func (p *proposer) findConstraints() {
	for j := range p.Steps {
		for i := range j {
			if p.Steps[i].Fixed != "" || p.Steps[j].Fixed != "" {
				continue
			}
			if why := p.constraint(i, j); why != "" {
				p.Constraints[[2]int{i, j}] = why
			}
		}
	}
}

// fixed says why a step stays where it is and nothing passes it.
func (p *proposer) fixed(t *graphorder.Traits, divided string, figures *autoorder.Figures) string {
	switch {
	case t.Barrier != "":
		return t.Barrier
	case t.Batches && (p.paper || !p.unmeasured && !(figures.ElementsIn >= figures.ElementsOut && figures.ElementsOut > 0)):
		return "it makes one element of several"
	case t.Stateful:
		return "its result or effect depends on more than its element"
	case t.Random && !t.Keyable:
		return "its random values depend on earlier ones"
	case divided != "":
		return divided
	case p.paper:
		return changesComponentForm(t)
	}
	return ""
}

// changesComponentForm says whether a step changes a component's rank, or between strings and numbers. The
// published policy does not move such steps.
func changesComponentForm(t *graphorder.Traits) string {
	for _, c := range t.Writes {
		if why := changesRankOrKind(t.Before[c], t.After[c]); why != "" {
			return "it " + why
		}
	}
	return ""
}

// belowCut says of each step whether the dataset is divided above it, or a cache stores its output.
func (p *proposer) belowCut() []string {
	why := make([]string, len(p.steps))
	cut, kept := -1, -1
	for i := range p.all {
		if slices.Contains(p.plan.GetCut().GetEdges(), p.all[i].Node) {
			cut = i
		}
		if p.plan.GetCache() != nil && p.plan.GetCache().GetNode() == p.all[i].Node {
			kept = i
		}
	}
	for i, at := range p.steps {
		switch {
		case at <= kept:
			why[i] = "cache() keeps what comes of it"
		case at <= cut:
			why[i] = "the dataset is divided into streams above it"
		}
	}
	return why
}

// measuredFigures gives the measured figures of a step. A map yields one element for each input; if the counts
// differ, some elements were in flight.
func (p *proposer) measuredFigures(t *graphorder.Traits) (f autoorder.Figures) {
	own := p.metrics[t.Node]
	f.ElementsOut, f.Seconds = float64(own.GetElements()), own.GetSelfCpuS()
	f.ElementsIn = f.ElementsOut
	if t.Drops || t.Batches || t.Barrier != "" {
		if before := p.metricsBelow(t.Input); before != nil {
			f.ElementsIn = float64(before.GetElements())
		}
	}
	if t.Drops {
		f.ElementsIn = max(f.ElementsIn, f.ElementsOut)
	}
	return f
}

// metricsBelow gives the metrics of a node, or of the next one below that has any. Steps that pass elements on
// may have none.
func (p *proposer) metricsBelow(node string) *pecanv1.NodeMetrics {
	for i := len(p.all) - 1; i >= 0; i-- {
		if p.all[i].Node == node && p.all[i].Passes && p.metrics[node].GetElements() == 0 {
			node = p.all[i].Input
		}
	}
	return p.metrics[node]
}

// bytesAfter gives the average size of a node's elements, 0 if unknown.
func (p *proposer) bytesAfter(node string) float64 {
	f := p.metricsBelow(node)
	if f.GetElements() == 0 {
		return 0
	}
	return float64(f.GetBytesOut()) / float64(f.GetElements())
}

// components gives the sizes of an element's components. Components of unknown shape share the rest of the
// element's bytes.
func components(specs []*pecanv1.ComponentSpec, bytes float64) []autoorder.Component {
	out := make([]autoorder.Component, len(specs))
	unknown := 0
	for i, spec := range specs {
		out[i].Width, out[i].Work = width(spec), work(spec)
		values, known := valuesOf(spec.GetDims())
		if spec.GetUnknownRank() || !known || isString(spec) {
			unknown++
			continue
		}
		out[i].Values = values
		bytes -= values * out[i].Width
	}
	for i, spec := range specs {
		if values, known := valuesOf(spec.GetDims()); unknown > 0 && (spec.GetUnknownRank() || !known || isString(spec)) {
			out[i].Values = max(bytes, 0) / float64(unknown) / out[i].Width
		} else {
			out[i].Values = values
		}
	}
	return out
}

func valuesOf(dims []int64) (values float64, known bool) {
	values = 1
	for _, d := range dims {
		if d < 0 {
			return 0, false
		}
		values *= float64(d)
	}
	return values, true
}

func isString(spec *pecanv1.ComponentSpec) bool {
	return tf.DataType(spec.GetDtype()) == tf.DataType_DT_STRING
}

func bytesOf(all []autoorder.Component) (bytes float64) {
	for _, c := range all {
		bytes += c.Values * c.Width
	}
	return bytes
}

// writes gives what a step does to the sizes of the components that it writes.
func (p *proposer) writes(t *graphorder.Traits, at []autoorder.Component) (writes []autoorder.Write) {
	for i, c := range t.Writes {
		w := autoorder.Write{Component: c, Values: p.effect(t, i, at)}
		if t.Before[c].GetDtype() != t.After[c].GetDtype() {
			w.Width, w.Work = width(t.After[c]), work(t.After[c])
		}
		writes = append(writes, w)
	}
	return writes
}

// rowsOf gives what a batch of rows does to the sizes of components.
func rowsOf(t *graphorder.Traits, rows float64) (writes []autoorder.Write) {
	for _, c := range t.Writes {
		writes = append(writes, autoorder.Write{Component: c, Values: autoorder.Effect{Kind: autoorder.Multiplies, By: rows}})
	}
	return writes
}

// effect gives what a step does to a number of values: from the step's function if that tells, otherwise from
// measurements.
func (p *proposer) effect(t *graphorder.Traits, write int, at []autoorder.Component) autoorder.Effect {
	c := t.Writes[write]
	before, after := t.Before[c], t.After[c]
	followed := t.Changes[write].Opaque == ""
	if followed && t.Changes[write].Sizes == 0 {
		return autoorder.Effect{}
	}
	sizes := after.GetDims()
	if followed {
		sizes = t.Changes[write].After
	}
	has, had := sizes, before.GetDims()
	values, known := valuesOf(has)
	known = known && !isString(after) && !(after.GetUnknownRank() && !followed)
	switch {
	case known && slices.Equal(has, had):
		return autoorder.Effect{}
	case known:
		return autoorder.Effect{Kind: autoorder.Sets, By: values}
	}
	if by, known := ratio(had, has, t.Changes[write].Sizes); followed && known {
		return autoorder.Effect{Kind: autoorder.Multiplies, By: by}
	}
	measured := components(t.After, p.bytesAfter(t.Node))[c].Values
	if !(at[c].Values > 0) || !(measured > 0) || nearly(measured, at[c].Values) {
		return autoorder.Effect{}
	}
	return autoorder.Effect{Kind: autoorder.Multiplies, By: measured / at[c].Values}
}

func nearly(a, b float64) bool { return a < b*(1+near) && b < a*(1+near) }

// ratio gives the growth of the number of values, if the changed sizes are known before and after.
func ratio(before, after []int64, changed dataflow.Dims) (by float64, known bool) {
	by = 1
	for i := range after {
		switch {
		case changed&(1<<i) == 0:
		case i >= len(before) || before[i] <= 0 || after[i] < 0:
			return 0, false
		default:
			by *= float64(after[i]) / float64(before[i])
		}
	}
	return by, true
}

func apply(w autoorder.Write, to []autoorder.Component) {
	switch w.Values.Kind {
	case autoorder.Multiplies:
		to[w.Component].Values *= w.Values.By
	case autoorder.Sets:
		to[w.Component].Values = w.Values.By
	}
	if w.Width > 0 {
		to[w.Component].Width, to[w.Component].Work = w.Width, w.Work
	}
}
