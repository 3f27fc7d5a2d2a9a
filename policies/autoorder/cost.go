package autoorder

import (
	"cmp"
	"fmt"
	"math"
	"slices"
)

// Limits bound what Cost may propose and how long it looks.
type Limits struct {
	// MinGain is the share of the original's predicted seconds that an order has to save, or the original stays.
	MinGain float64
	// Places is how many partial orders are looked at for each section before the best of them is taken for the best there is; 0: 100,000.
	Places int
}

const (
	defaultPlaces = 100_000
	beamWidth     = 48
	beamWork      = 200_000
	// Predictions that differ by less are the same: which one is a little smaller is the doing of rounding.
	same = 1e-9
)

// Cost orders by what the steps cost. What holds a step behind another makes a partial order within each section between fixed steps;
// among the orders that keep it, the one with the least predicted CPU for an element of the source is taken: the sum over the steps of the
// elements that reach a step there, times what an element takes it, of which a part grows with the bytes of what it reads. The sums of
// cedar (Zhao et al., arXiv 2401.08895) are this with no fixed part and exponents of 1.
//
// The original is what every other order is measured against, so by its own prediction no plan is worse. Steps that gain nothing by
// a move keep their places among each other.
func Cost(p Pipeline, limits Limits) Plan {
	if limits.Places <= 0 {
		limits.Places = defaultPlaces
	}
	m := newModel(p)
	plan := Plan{Order: original(len(p.Steps)), Reasons: make([]string, len(p.Steps)), Before: m.total(original(len(p.Steps)))}
	for _, section := range sections(p.Steps) {
		copy(plan.Order[section[0]:], newSearch(m, section, limits.Places).best())
	}
	plan.After = m.total(plan.Order)
	if proposed := plan.Order; plan.Moves() && !(plan.Before-plan.After > limits.MinGain*plan.Before) {
		gain := (plan.Before - plan.After) / plan.Before
		plan.Order, plan.After = original(len(p.Steps)), plan.Before
		for i := range p.Steps {
			if plan.Reasons[i] = m.reason(plan.Order, i); place(proposed, i) != "stays" {
				plan.Reasons[i] = fmt.Sprintf("stays: all moves together would save %.2g %% of the CPU, which is not worth a trial", 100*gain)
			}
		}
		return plan
	}
	for i := range p.Steps {
		plan.Reasons[i] = m.reason(plan.Order, i)
	}
	return plan
}

// model predicts what orders cost.
type model struct {
	Pipeline
	// entry are the components and the elements for one of the source in front of each step, in the original order.
	entry []state
	// readAt is how many bytes a call of each step reads there.
	readAt []float64
}

// state is what reaches a step.
type state struct {
	components []Component
	elements   float64
}

func newModel(p Pipeline) *model {
	m := &model{Pipeline: p, entry: make([]state, len(p.Steps)), readAt: make([]float64, len(p.Steps))}
	at := state{p.Source, 1}
	for i := range p.Steps {
		m.entry[i], m.readAt[i] = at, m.read(at, i)
		at = m.behind(at, i)
	}
	return m
}

// read is how many bytes the step's work grows with.
func (m *model) read(at state, step int) (bytes float64) {
	for _, i := range m.Steps[step].Reads {
		if i >= len(at.components) {
			continue
		}
		c := at.components[i]
		if !m.Steps[step].Copies {
			c.Width = max(c.Width, c.Work)
		}
		bytes += c.bytes()
	}
	return bytes
}

// behind is what leaves a step.
func (m *model) behind(at state, step int) state {
	s := &m.Steps[step]
	out := state{slices.Clone(at.components), at.elements * s.share()}
	if s.After != nil {
		out.components = slices.Clone(s.After)
	}
	for _, w := range s.Writes {
		if w.Component >= len(out.components) {
			continue
		}
		c := &out.components[w.Component]
		switch w.Values.Kind {
		case Multiplies:
			c.Values *= w.Values.By
		case Sets:
			c.Values = w.Values.By
		}
		if w.Width > 0 {
			c.Width, c.Work = w.Width, w.Work
		}
	}
	return out
}

// share is how many elements leave the step for one that reaches it.
func (s *Step) share() float64 {
	if !(s.ElementsIn > 0) || !(s.ElementsOut >= 0) {
		return 1
	}
	return s.ElementsOut / s.ElementsIn
}

// seconds is what a step costs for an element of the source where it stands.
func (m *model) seconds(at state, step int) float64 {
	s := &m.Steps[step]
	each := s.each()
	if each == 0 {
		return 0
	}
	grows := 1.0
	if base := m.readAt[step]; base > 0 {
		if grows = m.read(at, step) / base; s.Exponent != 0 && s.Exponent != 1 {
			grows = math.Pow(grows, s.Exponent)
		}
	}
	return at.elements * each * (s.fixed() + (1-s.fixed())*grows)
}

// each is what an element took where the step was measured; 0 where that is not known.
func (s *Step) each() float64 {
	if !(s.ElementsIn > 0) || !(s.Seconds > 0) {
		return 0
	}
	return s.Seconds / s.ElementsIn
}

func (s *Step) fixed() float64 { return min(max(s.FixedShare, 0), 1) }

// total is what all steps of an order cost. What leaves a section is what leaves it in the original order, so that sections do not
// depend on each other.
func (m *model) total(order []int) (sum float64) {
	m.walk(order, func(step int, at state) { sum += m.seconds(at, step) })
	return sum
}

// walk visits the steps of an order with what reaches them.
func (m *model) walk(order []int, visit func(step int, at state)) {
	at := state{m.Source, 1}
	for place, step := range order {
		if m.Steps[step].Fixed != "" || place > 0 && m.Steps[order[place-1]].Fixed != "" {
			at = m.entry[place]
		}
		visit(step, at)
		at = m.behind(at, step)
	}
}

// search looks for the best order of one section. Its steps are counted from the section's first one.
type search struct {
	*model
	first, steps int
	places       int
	// held are, for each step, those that come before it in every legal order.
	held []set
	// found is the best order so far, at is what it costs.
	found []int
	at    float64
	path  []int
}

// set is one of steps.
type set []uint64

func newSet(steps int) set { return make(set, (steps+63)/64) }

func (s set) has(step int) bool { return s[step/64]&(1<<(step%64)) != 0 }
func (s set) flip(step int)     { s[step/64] ^= 1 << (step % 64) }
func (s set) holds(other set) bool {
	for i, bits := range other {
		if bits&^s[i] != 0 {
			return false
		}
	}
	return true
}

func newSearch(m *model, section [2]int, places int) *search {
	s := &search{model: m, first: section[0], steps: section[1] - section[0], places: places}
	s.held = make([]set, s.steps)
	for step := range s.steps {
		s.held[step] = newSet(s.steps)
		for before := range step {
			if _, held := m.Holds[[2]int{s.first + before, s.first + step}]; held {
				s.held[step].flip(before)
			}
		}
	}
	return s
}

func (s *search) cost(step int, at state) float64 { return s.seconds(at, s.first+step) }
func (s *search) leaves(step int, at state) state { return s.behind(at, s.first+step) }

// best is the order of the section, by the numbers of its steps.
func (s *search) best() []int {
	s.found = original(s.steps)
	at := s.entry[s.first]
	for _, step := range s.found {
		s.at += s.cost(step, at)
		at = s.leaves(step, at)
	}
	if s.steps > 1 {
		s.beam()
		s.deepen(newSet(s.steps), s.entry[s.first], 0)
		s.calm()
	}
	order := make([]int, s.steps)
	for i, step := range s.found {
		order[i] = s.first + step
	}
	return order
}

func (s *search) better(cost float64) bool { return cost < s.at*(1-same) }

// partial is the beginning of an order.
type partial struct {
	order []int
	used  set
	state state
	cost  float64
}

// candidate is one step more behind a beginning, and what the whole is guessed to cost.
type candidate struct {
	beginning, step int
	guess           float64
}

// beam finds a good order quickly: it keeps the beginnings of each length that promise most, which is what they cost and what the
// steps that are left would cost if each came next.
func (s *search) beam() {
	// Long sections get fewer beginnings, so that planning takes no longer for them.
	width := min(max(beamWork/(s.steps*s.steps), 2), beamWidth)
	kept := []partial{{used: newSet(s.steps), state: s.entry[s.first]}}
	for range s.steps {
		var all []candidate
		for i, p := range kept {
			rest := s.rest(p)
			for step := range s.steps {
				if !p.used.has(step) && p.used.holds(s.held[step]) {
					all = append(all, candidate{i, step, p.cost + rest.without(s, step, p.state)})
				}
			}
		}
		slices.SortStableFunc(all, func(a, b candidate) int { return cmp.Compare(a.guess, b.guess) })
		next := make([]partial, 0, width)
		for _, c := range all[:min(len(all), width)] {
			p := kept[c.beginning]
			used := slices.Clone(p.used)
			used.flip(c.step)
			next = append(next, partial{append(slices.Clone(p.order), c.step), used, s.leaves(c.step, p.state), p.cost + s.cost(c.step, p.state)})
		}
		kept = next
	}
	for _, p := range kept {
		if s.better(p.cost) {
			s.found, s.at = p.order, p.cost
		}
	}
}

// rest is what steps cost at one place, as a sum over components, exponents left out of account: fixed, and per byte of each.
type rest struct {
	fixed   float64
	perByte []float64
}

func (s *search) rest(p partial) rest {
	r := rest{perByte: make([]float64, len(p.state.components))}
	for step := range s.steps {
		if !p.used.has(step) {
			r.add(s.model, s.first+step, 1)
		}
	}
	return r
}

func (r *rest) add(m *model, step int, sign float64) {
	s := &m.Steps[step]
	whole := sign * s.each()
	if m.readAt[step] <= 0 {
		r.fixed += whole
		return
	}
	r.fixed += whole * s.fixed()
	for _, c := range s.Reads {
		if c < len(r.perByte) {
			r.perByte[c] += whole * (1 - s.fixed()) / m.readAt[step]
		}
	}
}

// without guesses what the steps cost when one of them comes next.
func (r rest) without(s *search, step int, at state) float64 {
	behind := s.leaves(step, at)
	r.perByte = slices.Clone(r.perByte)
	r.add(s.model, s.first+step, -1)
	sum := r.fixed
	for c, perByte := range r.perByte {
		sum += perByte * behind.components[c].bytes()
	}
	return s.cost(step, at) + behind.elements*sum
}

// deepen tries all orders that begin like the path, but those that already cost more than the best one.
func (s *search) deepen(used set, at state, cost float64) {
	if len(s.path) == s.steps {
		if s.better(cost) {
			s.found, s.at = slices.Clone(s.path), cost
		}
		return
	}
	for step := range s.steps {
		if used.has(step) || !used.holds(s.held[step]) {
			continue
		}
		if s.places--; s.places < 0 {
			return
		}
		next := cost + s.cost(step, at)
		if !s.better(next) {
			continue
		}
		used.flip(step)
		s.path = append(s.path, step)
		s.deepen(used, s.leaves(step, at), next)
		s.path = s.path[:len(s.path)-1]
		used.flip(step)
	}
}

// calm takes back what gains nothing: neighbours that changed places stand as their author had them where that costs no more.
func (s *search) calm() {
	for changed := true; changed; {
		changed = false
		at := s.entry[s.first]
		for i := range s.steps - 1 {
			a, b := s.found[i], s.found[i+1]
			if a > b {
				left, right := s.leaves(a, at), s.leaves(b, at)
				was, is := s.cost(a, at)+s.cost(b, left), s.cost(b, at)+s.cost(a, right)
				if is <= was*(1+same) && s.leaves(b, left).like(s.leaves(a, right)) {
					s.found[i], s.found[i+1], changed = b, a, true
				}
			}
			at = s.leaves(s.found[i], at)
		}
	}
}

// like tells whether two states are the same but for rounding.
func (s state) like(other state) bool {
	near := func(a, b float64) bool { return math.Abs(a-b) <= same*max(math.Abs(a), math.Abs(b)) }
	return near(s.elements, other.elements) && slices.EqualFunc(s.components, other.components, func(a, b Component) bool {
		return near(a.Values, b.Values) && near(a.Width, b.Width)
	})
}

// reason says in a line what became of a step.
func (m *model) reason(order []int, step int) string {
	s := &m.Steps[step]
	if s.Fixed != "" {
		return fixedReason(s)
	}
	where := place(order, step)
	if where != "stays" {
		was, is := m.seconds(m.entry[step], step), 0.0
		m.walk(order, func(other int, at state) {
			if other == step {
				is = m.seconds(at, step)
			}
		})
		if math.Abs(is-was) <= same*was {
			return fmt.Sprintf("%s: takes %s for an element of the source as before, and others take less behind it or before it", where, Span(is))
		}
		return fmt.Sprintf("%s: takes %s for an element of the source there, and %s where it was", where, Span(is), Span(was))
	}
	if !(s.ElementsIn > 0) {
		where += ": what it costs is not known"
	}
	at := slices.Index(order, step)
	for _, before := range slices.Backward(order[:at]) {
		if m.Steps[before].Fixed != "" {
			return fmt.Sprintf("%s; %s stands before it and is passed by nothing", where, m.Steps[before].Name)
		}
		if why, held := m.Holds[[2]int{before, step}]; held {
			return fmt.Sprintf("%s; it may not run before %s: %s", where, m.Steps[before].Name, why)
		}
	}
	return where + "; no other place makes the pipeline cheaper"
}

// Span writes a time for people, in microseconds up to a thousand of them.
func Span(seconds float64) string {
	switch {
	case seconds < 1e-3:
		return fmt.Sprintf("%.3g µs", 1e6*seconds)
	case seconds < 1:
		return fmt.Sprintf("%.3g ms", 1e3*seconds)
	}
	return fmt.Sprintf("%.3g s", seconds)
}
