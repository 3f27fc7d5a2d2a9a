package autoorder

import (
	"cmp"
	"math"
	"slices"
)

const (
	// beamWidth is the most partial orders that the beam search keeps of each length.
	beamWidth = 48
	// beamWork bounds the work of the beam search for long sections.
	beamWork = 200_000
)

// search finds the cheapest order of one section: a beam search finds a good order quickly, then branch and
// bound improves it. Steps are numbered from the first one of the section.
type search struct {
	*model
	first, steps int
	// prefixes is how many more prefixes of orders the search may visit.
	prefixes int
	// before has, for each step, the steps that come before it in every valid order.
	before []set
	// order is the best order so far, total its cost.
	order []int
	total float64
	path  []int
}

// set is a set of steps.
type set []uint64

func newSet(steps int) set { return make(set, (steps+63)/64) }

func (s set) has(step int) bool { return s[step/64]&(1<<(step%64)) != 0 }
func (s set) flip(step int)     { s[step/64] ^= 1 << (step % 64) }
func (s set) contains(other set) bool {
	for i, bits := range other {
		if bits&^s[i] != 0 {
			return false
		}
	}
	return true
}

func newSearch(m *model, section [2]int, prefixes int) *search {
	s := &search{model: m, first: section[0], steps: section[1] - section[0], prefixes: prefixes}
	s.before = make([]set, s.steps)
	for step := range s.steps {
		s.before[step] = newSet(s.steps)
		for before := range step {
			if _, constrained := m.Constraints[[2]int{s.first + before, s.first + step}]; constrained {
				s.before[step].flip(before)
			}
		}
	}
	return s
}

func (s *search) cost(step int, at state) float64   { return s.seconds(at, s.first+step) }
func (s *search) outputOf(step int, at state) state { return s.after(at, s.first+step) }

// best returns the cheapest order of the section, by the numbers of its steps.
func (s *search) best() []int {
	s.order = original(s.steps)
	at := s.entry[s.first]
	for _, step := range s.order {
		s.total += s.cost(step, at)
		at = s.outputOf(step, at)
	}
	if s.steps > 1 {
		s.beam()
		s.deepen(newSet(s.steps), s.entry[s.first], 0)
		s.undoNeutralSwaps()
	}
	order := make([]int, s.steps)
	for i, step := range s.order {
		order[i] = s.first + step
	}
	return order
}

func (s *search) better(cost float64) bool { return cost < s.total*(1-same) }

// partial is a prefix of an order.
type partial struct {
	order []int
	used  set
	state state
	cost  float64
}

// candidate is a prefix with one more step, and the estimated cost of the whole order.
type candidate struct {
	prefix, step int
	guess        float64
}

// beam finds a good order quickly. For each length it keeps the prefixes with the lowest estimate: their cost,
// plus the cost of each remaining step if it came next.
func (s *search) beam() {
	// Long sections get fewer prefixes, so that planning takes no longer for them.
	width := min(max(beamWork/(s.steps*s.steps), 2), beamWidth)
	kept := []partial{{used: newSet(s.steps), state: s.entry[s.first]}}
	for range s.steps {
		var all []candidate
		for i, p := range kept {
			rest := s.rest(p)
			for step := range s.steps {
				if !p.used.has(step) && p.used.contains(s.before[step]) {
					all = append(all, candidate{i, step, p.cost + rest.without(s, step, p.state)})
				}
			}
		}
		slices.SortStableFunc(all, func(a, b candidate) int { return cmp.Compare(a.guess, b.guess) })
		next := make([]partial, 0, width)
		for _, c := range all[:min(len(all), width)] {
			p := kept[c.prefix]
			used := slices.Clone(p.used)
			used.flip(c.step)
			next = append(next, partial{append(slices.Clone(p.order), c.step), used, s.outputOf(c.step, p.state), p.cost + s.cost(c.step, p.state)})
		}
		kept = next
	}
	for _, p := range kept {
		if s.better(p.cost) {
			s.order, s.total = p.order, p.cost
		}
	}
}

// rest is the cost of the remaining steps at one position: a fixed part, and a part per byte of each component.
// It ignores exponents.
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

// without estimates the cost of the remaining steps if one of them comes next.
func (r rest) without(s *search, step int, at state) float64 {
	after := s.outputOf(step, at)
	r.perByte = slices.Clone(r.perByte)
	r.add(s.model, s.first+step, -1)
	sum := r.fixed
	for c, perByte := range r.perByte {
		sum += perByte * after.components[c].bytes()
	}
	return s.cost(step, at) + after.elements*sum
}

// deepen tries all orders that start with the path (branch and bound). It skips prefixes that already cost more
// than the best order.
func (s *search) deepen(used set, at state, cost float64) {
	if len(s.path) == s.steps {
		if s.better(cost) {
			s.order, s.total = slices.Clone(s.path), cost
		}
		return
	}
	for step := range s.steps {
		if used.has(step) || !used.contains(s.before[step]) {
			continue
		}
		if s.prefixes--; s.prefixes < 0 {
			return
		}
		next := cost + s.cost(step, at)
		if !s.better(next) {
			continue
		}
		used.flip(step)
		s.path = append(s.path, step)
		s.deepen(used, s.outputOf(step, at), next)
		s.path = s.path[:len(s.path)-1]
		used.flip(step)
	}
}

// undoNeutralSwaps restores the author's order of neighbours if that costs no more.
func (s *search) undoNeutralSwaps() {
	for changed := true; changed; {
		changed = false
		at := s.entry[s.first]
		for i := range s.steps - 1 {
			a, b := s.order[i], s.order[i+1]
			if a > b {
				left, right := s.outputOf(a, at), s.outputOf(b, at)
				was, is := s.cost(a, at)+s.cost(b, left), s.cost(b, at)+s.cost(a, right)
				if is <= was*(1+same) && s.outputOf(b, left).like(s.outputOf(a, right)) {
					s.order[i], s.order[i+1], changed = b, a, true
				}
			}
			at = s.outputOf(s.order[i], at)
		}
	}
}

// like returns whether two states are equal except for rounding.
func (s state) like(other state) bool {
	near := func(a, b float64) bool { return math.Abs(a-b) <= same*max(math.Abs(a), math.Abs(b)) }
	return near(s.elements, other.elements) && slices.EqualFunc(s.components, other.components, func(a, b Component) bool {
		return near(a.Values, b.Values) && near(a.Width, b.Width)
	})
}
