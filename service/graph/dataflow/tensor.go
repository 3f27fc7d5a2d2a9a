package dataflow

import (
	"slices"
)

// valueKind says how a tensor inside a function depends on the component.
type valueKind int

const (
	// independent means that it does not depend on the component.
	independent valueKind = iota
	// sizeOnly means that it depends only on the component's sizes.
	sizeOnly
	// derived means that it is computed from the component, as its change says.
	derived
	// opaque means that it depends on the component in a way that the analysis does not understand.
	opaque
)

// tensor contains what is known about a tensor inside a function.
type tensor struct {
	kind   valueKind
	why    string
	change Change
	// axes are its dimensions, if ranked.
	axes   []axis
	ranked bool
	// ints are its values in row-major order, if intsKnown.
	ints      []symbolicSize
	intsKnown bool
	// fixed has the different numbers of a constant; nil if they are not known.
	fixed []float64
}

// axis is a dimension. It consists of one dimension of the component, of several that were merged, or of none
// if its size is 1.
type axis []axisPart

// axisPart is a dimension of the component. dim is -1 for a dimension from elsewhere, and uniform for one
// along which all values are equal.
type axisPart struct {
	size symbolicSize
	dim  int
}

const uniform = -2

// symbolicSize is the product of a number and of unknown sizes, each of which has a letter.
type symbolicSize struct {
	n  int64
	of string
	// dependsOn contains the dimensions of the component from which the size is computed.
	dependsOn Dims
}

func literal(n int64) symbolicSize { return symbolicSize{n: n} }

func (v *valueAnalysis) unknown(dims Dims) symbolicSize {
	v.symbols++
	return symbolicSize{n: 1, of: string(v.symbols), dependsOn: dims}
}

func (s symbolicSize) is(other symbolicSize) bool { return s.n == other.n && s.of == other.of }

// constant returns a size, and whether it is known.
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

// dims returns the dimensions of the component in an axis.
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

// keepsDimensions reports whether a tensor has the component's dimensions in their order. A new dimension of
// size 1 may replace a removed one.
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

// sizeDependencies returns the dimensions whose sizes a tensor depends on.
func (t *tensor) sizeDependencies() Dims {
	s := t.change.DependsOnSize
	for _, n := range t.ints {
		s |= n.dependsOn
	}
	return s
}

func opaqueTensor(why string) *tensor { return &tensor{kind: opaque, why: why} }
