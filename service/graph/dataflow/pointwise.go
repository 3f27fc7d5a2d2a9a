package dataflow

import (
	"slices"

	tf "github.com/pecan-ml/pecan/proto/tensorflow"
	"github.com/pecan-ml/pecan/service/graph/nodedef"
	"github.com/pecan-ml/pecan/service/graph/ops"
)

// linearity says when an op with two arguments is affine.
type linearity int

const (
	never linearity = iota
	// sums means that the op is always affine.
	sums
	// scales means that the op is affine if one of the arguments is fixed.
	scales
	// divides means that the op is affine if the right argument is fixed.
	divides
)

// acceptsAnyShapes reports whether a comparison also accepts incompatible shapes.
func acceptsAnyShapes(n *tf.NodeDef) bool {
	v, ok := n.GetAttr()["incompatible_shape_error"]
	return ok && !v.GetB()
}

// pointwise computes each value from the value at the same position.
func pointwise(f *scope, n *tf.NodeDef, in []*tensor) []*tensor {
	x := in[0]
	switch x.kind {
	case opaque:
		return nil
	case derived:
		t := x.with(x.axes)
		t.ranked = x.ranked
		t.change.computed(x.change.value.unary(n))
		t.change.AlignmentDependent = t.change.AlignmentDependent || uneven(n)
		if n.GetOp() != "Neg" && (n.GetOp() != "Cast" || !floating(n.GetAttr()["DstT"].GetType())) {
			t.change.Affine = false
		}
		return single(t)
	}
	t := derivedFrom(x)
	t.axes, t.ranked = x.axes, x.ranked
	if x.intsKnown {
		t.intsKnown = true
		for _, v := range x.ints {
			if n.GetOp() != "Cast" || nodedef.DtypeSize(n.GetAttr()["DstT"].GetType()) < 4 {
				v = f.unknown(v.dependsOn)
			}
			t.ints = append(t.ints, v)
		}
	}
	return single(t)
}

// evenOps round each float as IEEE 754 says, wherever the value is in memory.
var evenOps = ops.Names(`
	Abs Ceil Floor Neg Rint Round Sqrt Square IsFinite IsInf IsNan Add AddV2 Sub Mul RealDiv Div SquaredDifference
	Equal NotEqual Less LessEqual Greater GreaterEqual
`)

// evenComplexOps do the same for complex numbers. Quotients of complex numbers are not among them: they are
// computed like logarithms.
var evenComplexOps = ops.Names(`Neg Add AddV2 Sub Equal NotEqual`)

// uneven reports whether the last bits of an op's results may depend on the position of a value in memory. If
// a float does not fit into an integer, the result of the cast depends on the CPU instruction. The maximum
// and the minimum of zeros with different signs depend on it too.
func uneven(n *tf.NodeDef) bool {
	of := n.GetAttr()["T"].GetType()
	switch {
	case n.GetOp() == "Cast":
		to := n.GetAttr()["DstT"].GetType()
		return floating(n.GetAttr()["SrcT"].GetType()) && IsInteger(to)
	case complexNumber(of):
		return !evenComplexOps[n.GetOp()]
	}
	return floating(of) && !evenOps[n.GetOp()]
}

func floating(t tf.DataType) bool {
	switch t {
	case tf.DataType_DT_FLOAT, tf.DataType_DT_DOUBLE, tf.DataType_DT_HALF, tf.DataType_DT_BFLOAT16:
		return true
	}
	return false
}

func complexNumber(t tf.DataType) bool {
	return t == tf.DataType_DT_COMPLEX64 || t == tf.DataType_DT_COMPLEX128
}

// IsInteger reports whether a type has integer values.
func IsInteger(t tf.DataType) bool {
	return !floating(t) && !complexNumber(t) && t != tf.DataType_DT_BOOL
}

// binary computes value by value from two tensors. It broadcasts the smaller tensor to the larger one.
func (s *scope) binary(n *tf.NodeDef, affine linearity, a, b *tensor) *tensor {
	switch {
	case a.kind == opaque || b.kind == opaque:
		return nil
	case a.kind == derived && b.kind == derived:
		t := mergeDerived(a, b)
		if t == nil {
			return nil
		}
		if a != b {
			t.change.Mixes |= a.change.Moves | b.change.Moves
			t.change.Skews |= a.change.Moves | b.change.Moves
		}
		t.change.computed(both(n, a.change.value, b.change.value))
		t.change.Affine = t.change.Affine && affine == sums
		return t
	case a.kind == derived:
		return broadcast(a, b, affine != never, a.change.value.with(n, b.fixed, false))
	case b.kind == derived:
		return broadcast(b, a, affine == sums || affine == scales, b.change.value.with(n, a.fixed, true))
	}
	t := derivedFrom(a, b)
	if !a.ranked || !b.ranked {
		return t
	}
	if len(a.axes) < len(b.axes) {
		a, b = b, a
	}
	t.ranked, t.axes = true, slices.Clone(a.axes)
	for i, other := range b.axes {
		at := len(a.axes) - len(b.axes) + i
		switch mine := a.axes[at]; {
		case isSizeOne(other):
		case isSizeOne(mine):
			t.axes[at] = other
		case mine.size().is(other.size()):
			t.axes[at] = newAxis(mine.size())
		default:
			t.axes[at] = newAxis(s.unknown(0))
		}
	}
	count, known := int64(1), len(t.axes) == 0
	if len(t.axes) == 1 {
		count, known = t.axes[0].size().constant()
	}
	if t.intsKnown = known && count <= maxInts && (a.intsKnown || b.intsKnown); t.intsKnown {
		for i := range int(count) {
			x, y := s.at(a, i), s.at(b, i)
			v := s.unknown(x.dependsOn | y.dependsOn)
			if n.GetOp() == "Mul" {
				v = productOf(x, y)
			}
			t.ints = append(t.ints, v)
		}
	}
	return t
}

// broadcast computes value by value with a tensor that does not depend on the component's values. value evaluates one number.
func broadcast(x, other *tensor, affine bool, value scalarFunction) *tensor {
	if !other.ranked || !x.ranked || len(other.axes) > len(x.axes) {
		return opaqueTensor("the shape of the other operand is not known")
	}
	t := x.with(x.axes)
	for i, o := range other.axes {
		mine := x.axes[len(x.axes)-len(other.axes)+i]
		if isSizeOne(o) {
			continue
		}
		if !mine.size().is(o.size()) {
			return opaqueTensor("the other operand may make it larger")
		}
		t.change.PositionDependent |= mine.dims()
		t.change.DependsOnSize |= dependentDims(mine, o.size())
	}
	t.change.DependsOnSize |= other.sizeDependencies()
	t.change.computed(value)
	t.change.Affine = t.change.Affine && affine
	return t
}

// mergeDerived returns a tensor that is computed from two tensors with equal dimensions. Dimensions of size 1
// may differ.
func mergeDerived(a, b *tensor) *tensor {
	if !a.ranked || !b.ranked || len(a.axes) != len(b.axes) {
		return nil
	}
	t := a.with(slices.Clone(a.axes))
	for i, other := range b.axes {
		switch mine := a.axes[i]; {
		case mine.dims() == other.dims() && mine.size().is(other.size()), isSizeOne(other) && other.dims() == 0:
		case isSizeOne(mine) && mine.dims() == 0:
			t.axes[i] = other
		default:
			return nil
		}
	}
	t.change = a.change.union(b.change)
	return t
}

func transferClip(f *scope, n *tf.NodeDef, in []*tensor) []*tensor {
	if in[0].kind != derived || len(in) != 3 || !isIndependent(in[1:]...) {
		return nil
	}
	value := in[0].change.value.clipped(n.GetAttr()["T"].GetType(), in[1].fixed, in[2].fixed)
	t := broadcast(in[0], in[1], false, nil)
	if t.kind == derived {
		t = broadcast(t, in[2], false, value)
		t.change.AlignmentDependent = t.change.AlignmentDependent || uneven(n)
	}
	return single(t)
}
