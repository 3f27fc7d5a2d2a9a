package dataflow

import (
	"slices"
)

// valueKind says what a tensor inside a function has to do with the component.
type valueKind int

const (
	// independent: nothing.
	independent valueKind = iota
	// sizeOnly: it depends on the component's sizes alone.
	sizeOnly
	// derived: it is the component, changed.
	derived
	// opaque: it depends on the component in a way that is not followed.
	opaque
)

// tensor is what is known of one inside a function.
type tensor struct {
	kind   valueKind
	why    string
	change Change
	// axes are its dimensions, if ranked.
	axes   []axis
	ranked bool
	// ints are its values, row by row, if counted.
	ints      []symbolicSize
	intsKnown bool
}

// axis is a dimension: several of the component that were merged into one, or one, or none for a size of 1.
type axis []axisPart

// axisPart is a dimension of the component, or one that has come in (place -1), or one along which all that came in is alike.
type axisPart struct {
	size symbolicSize
	dim  int
}

const uniform = -2

// symbolicSize is a product of a number and of sizes that nobody knows.
type symbolicSize struct {
	n  int64
	of string
	// dependsOn has the dimensions of the component that it was computed from.
	dependsOn Dims
}

func literal(n int64) symbolicSize { return symbolicSize{n: n} }

func (w *valueAnalysis) unknown(looks Dims) symbolicSize {
	w.symbols++
	return symbolicSize{n: 1, of: string(w.symbols), dependsOn: looks}
}

func (s symbolicSize) is(other symbolicSize) bool { return s.n == other.n && s.of == other.of }

// constant gives a size that is known.
func (s symbolicSize) constant() (int64, bool) { return s.n, s.of == "" }

func productOf(sizes ...symbolicSize) symbolicSize {
	all := literal(1)
	var of []rune
	for _, s := range sizes {
		all.n *= s.n
		all.dependsOn |= s.dependsOn
		of = append(of, []rune(s.of)...)
	}
	slices.Sort(of)
	if all.of = string(of); all.n == 0 {
		all.of = ""
	}
	return all
}

func (a axis) size() symbolicSize {
	sizes := make([]symbolicSize, len(a))
	for i, p := range a {
		sizes[i] = p.size
	}
	return productOf(sizes...)
}

// dims are the dimensions of the component that lie in an axis.
func (a axis) dims() (s Dims) {
	for _, p := range a {
		if p.dim >= 0 {
			s |= DimSet(p.dim)
		}
	}
	return s
}

func (t *tensor) dims() (s Dims) {
	for _, a := range t.axes {
		s |= a.dims()
	}
	return s
}

func isSizeOne(a axis) bool {
	n, known := a.size().constant()
	return known && n == 1
}

// keepsDimensions tells whether a tensor has the component's dimensions in their order. One of size 1 may stand for one that is gone.
func (t *tensor) keepsDimensions(rank int) bool {
	if !t.ranked || len(t.axes) != rank {
		return false
	}
	there := t.dims()
	for i, a := range t.axes {
		at := a.dims()
		if at != DimSet(i) && !(at == 0 && len(a) <= 1 && there&DimSet(i) == 0 && isSizeOne(a)) {
			return false
		}
	}
	return true
}

// sizeDependencies are the dimensions on whose sizes a tensor depends.
func (t *tensor) sizeDependencies() Dims {
	s := t.change.DependsOnSize
	for _, n := range t.ints {
		s |= n.dependsOn
	}
	return s
}

func opaqueTensor(why string) *tensor { return &tensor{kind: opaque, why: why} }
