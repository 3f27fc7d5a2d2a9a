package ordering

import (
	"slices"

	"github.com/pecan-ml/pecan/policies/autoorder"
	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	tf "github.com/pecan-ml/pecan/proto/tensorflow"
	"github.com/pecan-ml/pecan/service/graph"
	"github.com/pecan-ml/pecan/service/graph/dataflow"
	graphorder "github.com/pecan-ml/pecan/service/graph/order"
)

// callSeconds is the fixed part of a step's time per call. The rest grows with the step's input.
const callSeconds = 10e-6

// near is the distance from 1 up to which a measured factor counts as 1. Measured factors are inexact, because the
// counted inputs and outputs of a step are not of exactly the same elements.
const near = 0.05

// describe sets the policy's input: the steps and their constraints.
func (p *proposer) describe() {
	p.Constraints = map[[2]int]string{}
	if len(p.steps) == 0 {
		return
	}
	first := p.step(0)
	at := components(first.Before, p.bytesAfter(first.Input))
	p.Source = at
	upstream := p.upstreamReasons()
	for i := range p.steps {
		t := p.step(i)
		s := autoorder.Step{Name: p.name(i), Reads: t.Reads, Measurements: p.measurements(t)}
		if i > 0 && p.begins(i) {
			at = components(t.Before, p.bytesAfter(t.Input))
			s.Source, s.SourceElements = at, 1
			if first := p.Steps[0].ElementsIn; first > 0 && s.ElementsIn > 0 {
				s.SourceElements = s.ElementsIn / first
			}
		}
		s.Fixed = p.fixed(t, upstream[i], &s.Measurements)
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

// begins reports whether a step is the first one of a branch or of a function, apart from steps that return their input
// unchanged. It also returns true for the step that calls the function, because its input is not what the function returns.
func (p *proposer) begins(i int) bool {
	from := 0
	if i > 0 {
		from = p.steps[i-1] + 1
	}
	for k := from; k <= p.steps[i]; k++ {
		if p.all[k].Begins || k > 0 && p.all[k].Inside != p.all[k-1].Inside {
			return true
		}
	}
	return false
}

// describeOther adds what the steps cost in another order. Inputs are counted by the outputs of the step that runs before.
func (p *proposer) describeOther(other *pecanv1.MeasuredOrder) {
	run := &autoorder.Run{Measurements: make([]autoorder.Measurements, len(p.steps))}
	metrics := map[string]*pecanv1.NodeMetrics{}
	for _, node := range pecanv1.WithInside(other.GetNodes()) {
		metrics[node.GetNode()] = node
	}
	before := 0.0
	for _, name := range other.GetOrder() {
		i := slices.IndexFunc(p.steps, func(at int) bool { return p.all[at].Node == name })
		if i < 0 {
			continue
		}
		own, in := metrics[name], before
		if p.begins(len(run.Order)) {
			in = 0
		}
		out := float64(own.GetElements())
		if t := p.step(i); !t.Drops && !t.Batches || in == 0 {
			in = out
		}
		run.Order = append(run.Order, i)
		run.Measurements[i] = autoorder.Measurements{ElementsIn: max(in, out), ElementsOut: out, Seconds: own.GetSelfCpuS()}
		before = out
	}
	if len(run.Order) == len(p.steps) {
		p.Other = run
	}
}

func (p *proposer) findConstraints() {
	section := 0
	for j := range p.Steps {
		if p.Steps[j].Fixed != "" || p.Steps[j].Source != nil {
			section = j
		}
		for i := section; i < j; i++ {
			if p.Steps[i].Fixed != "" || p.Steps[j].Fixed != "" {
				continue
			}
			if why := p.constraint(i, j); why != "" {
				p.Constraints[[2]int{i, j}] = why
			}
		}
	}
}

// fixed returns the reason why a step does not move and no step moves past it; empty if it may move. upstream
// is the reason of upstreamReasons.
func (p *proposer) fixed(t *graphorder.Traits, upstream string, measured *autoorder.Measurements) string {
	switch {
	case t.Barrier != "":
		return t.Barrier
	case t.Batches && (p.paper || !p.unmeasured && !(measured.ElementsIn >= measured.ElementsOut && measured.ElementsOut > 0)):
		return "it combines several elements into one"
	case t.Stateful:
		return "its results or effects depend on more than the current element"
	case t.Random && !t.Keyable:
		return "its random values depend on earlier random values"
	case upstream != "":
		return upstream
	case p.paper:
		return changesComponentForm(t)
	}
	return ""
}

// changesComponentForm describes a step's change of a component's rank, or between strings and numbers; empty
// without one. The published policy does not move such steps.
func changesComponentForm(t *graphorder.Traits) string {
	for _, c := range t.Writes {
		if why := changesRankOrKind(t.Before[c], t.After[c]); why != "" {
			return "it " + why
		}
	}
	return ""
}

// upstreamReasons returns for each step the reason why steps downstream fix it: it is upstream of the cut or of a cached
// step. The reason is empty for the other steps.
func (p *proposer) upstreamReasons() []string {
	cut, cached := map[string]bool{}, map[string]bool{}
	root, _ := p.g.Steps()
	root.Walk(func(s *graph.Step) {
		upstream := func(of map[string]bool) { s.Walk(func(u *graph.Step) { of[u.Node.GetName()] = true }) }
		if slices.Contains(p.plan.GetCut().GetEdges(), s.Node.GetName()) {
			upstream(cut)
		}
		if p.plan.GetCache() != nil && p.plan.GetCache().GetNode() == s.Node.GetName() {
			upstream(cached)
		}
	})
	why := make([]string, len(p.steps))
	for i, at := range p.steps {
		switch name := p.all[at].Outermost(); {
		case cached[name]:
			why[i] = "pecan.cache() stores the elements that it computes"
		case cut[name]:
			why[i] = "the dataset is divided into streams downstream of it"
		}
	}
	return why
}

// measurements returns the measurements of a step. A map returns one element for each input, so its inputs are
// counted by its outputs: the counts differ only by elements in flight.
func (p *proposer) measurements(t *graphorder.Traits) (m autoorder.Measurements) {
	own := p.metrics[t.Node]
	m.ElementsOut, m.Seconds = float64(own.GetElements()), own.GetSelfCpuS()
	m.ElementsIn = m.ElementsOut
	if t.Drops || t.Batches || t.Barrier != "" {
		if before := p.metricsUpstream(t.Input); before != nil {
			m.ElementsIn = float64(before.GetElements())
		}
	}
	if t.Drops {
		m.ElementsIn = max(m.ElementsIn, m.ElementsOut)
	}
	return m
}

// metricsUpstream returns the metrics of a node, or of the next node upstream that has some. Steps that return
// their input unchanged may have none.
func (p *proposer) metricsUpstream(node string) *pecanv1.NodeMetrics {
	for i := len(p.all) - 1; i >= 0; i-- {
		if p.all[i].Node == node && p.all[i].Passes && p.metrics[node].GetElements() == 0 {
			node = p.all[i].Input
		}
	}
	return p.metrics[node]
}

// bytesAfter returns the average size of a node's elements; 0 if it is unknown.
func (p *proposer) bytesAfter(node string) float64 {
	m := p.metricsUpstream(node)
	if m.GetElements() == 0 {
		return 0
	}
	return float64(m.GetBytesOut()) / float64(m.GetElements())
}

// components returns the sizes of an element's components. Components of unknown size share the rest of the
// element's bytes equally.
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

// writes returns the effects of a step on the sizes of the components that it writes.
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

// rowsOf returns the effects of a batch of that many rows on the sizes of components.
func rowsOf(t *graphorder.Traits, rows float64) (writes []autoorder.Write) {
	for _, c := range t.Writes {
		writes = append(writes, autoorder.Write{Component: c, Values: autoorder.Effect{Kind: autoorder.Multiplies, By: rows}})
	}
	return writes
}

// effect returns the effect of a step on the number of values of a component. It follows from the step's function if that
// change is known, and otherwise from measurements.
func (p *proposer) effect(t *graphorder.Traits, write int, at []autoorder.Component) autoorder.Effect {
	c := t.Writes[write]
	before, after := t.Before[c], t.After[c]
	known := t.Changes[write].Opaque == ""
	if known && t.Changes[write].Sizes == 0 {
		return autoorder.Effect{}
	}
	sizes := after.GetDims()
	if known {
		sizes = t.Changes[write].After
	}
	values, constant := valuesOf(sizes)
	constant = constant && !isString(after) && !(after.GetUnknownRank() && !known)
	switch {
	case constant && slices.Equal(sizes, before.GetDims()):
		return autoorder.Effect{}
	case constant:
		return autoorder.Effect{Kind: autoorder.Sets, By: values}
	}
	if by, constant := ratio(before.GetDims(), sizes, t.Changes[write].Sizes); known && constant {
		return autoorder.Effect{Kind: autoorder.Multiplies, By: by}
	}
	measured := components(t.After, p.bytesAfter(t.Node))[c].Values
	if !(at[c].Values > 0) || !(measured > 0) || nearly(measured, at[c].Values) {
		return autoorder.Effect{}
	}
	return autoorder.Effect{Kind: autoorder.Multiplies, By: measured / at[c].Values}
}

func nearly(a, b float64) bool { return a < b*(1+near) && b < a*(1+near) }

// ratio returns the factor by which the number of values grows. It is known if the changed sizes are known
// before and after the step.
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
