package dataflow

import (
	"slices"
)

// relation says what a tensor inside a function has to do with the component.
type relation int

const (
	// fixed: nothing.
	fixed relation = iota
	// sized: it depends on the component's sizes alone.
	sized
	// derived: it is the component, changed.
	derived
	// opaque: it depends on the component in a way that is not followed.
	opaque
)

// tensor is what is known of one inside a function.
type tensor struct {
	kind   relation
	why    string
	change Change
	// axes are its dimensions, if ranked.
	axes   []axis
	ranked bool
	// ints are its values, row by row, if counted.
	ints    []size
	counted bool
}

// axis is a dimension: several of the component that were merged into one, or one, or none for a size of 1.
type axis []part

// part is a dimension of the component, or one that has come in (place -1), or one along which all that came in is alike.
type part struct {
	size  size
	place int
}

const alike = -2

// size is a product of a number and of sizes that nobody knows.
type size struct {
	n  int64
	of string
	// looks has the dimensions of the component that it was computed from.
	looks Dims
}

func literal(n int64) size { return size{n: n} }

func (w *valueAnalysis) unknown(looks Dims) size {
	w.symbols++
	return size{n: 1, of: string(w.symbols), looks: looks}
}

func (s size) is(other size) bool { return s.n == other.n && s.of == other.of }

// constant gives a size that is known.
func (s size) constant() (int64, bool) { return s.n, s.of == "" }

func productOf(sizes ...size) size {
	all := literal(1)
	var of []rune
	for _, s := range sizes {
		all.n *= s.n
		all.looks |= s.looks
		of = append(of, []rune(s.of)...)
	}
	slices.Sort(of)
	if all.of = string(of); all.n == 0 {
		all.of = ""
	}
	return all
}

func (a axis) size() size {
	sizes := make([]size, len(a))
	for i, p := range a {
		sizes[i] = p.size
	}
	return productOf(sizes...)
}

// places are the dimensions of the component that lie in an axis.
func (a axis) places() (s Dims) {
	for _, p := range a {
		if p.place >= 0 {
			s |= DimSet(p.place)
		}
	}
	return s
}

func (t *tensor) places() (s Dims) {
	for _, a := range t.axes {
		s |= a.places()
	}
	return s
}

func ones(a axis) bool {
	n, known := a.size().constant()
	return known && n == 1
}

// stands tells whether a tensor has the component's dimensions in their order. One of size 1 may stand for one that is gone.
func (t *tensor) stands(rank int) bool {
	if !t.ranked || len(t.axes) != rank {
		return false
	}
	there := t.places()
	for i, a := range t.axes {
		at := a.places()
		if at != DimSet(i) && !(at == 0 && len(a) <= 1 && there&DimSet(i) == 0 && ones(a)) {
			return false
		}
	}
	return true
}

// looks are the dimensions on whose sizes a tensor depends.
func (t *tensor) looks() Dims {
	s := t.change.Looks
	for _, n := range t.ints {
		s |= n.looks
	}
	return s
}

func unclear(why string) *tensor { return &tensor{kind: opaque, why: why} }
