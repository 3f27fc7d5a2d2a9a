package dataflow

import (
	"slices"

	tf "github.com/pecan-ml/pecan/proto/tensorflow"
)

func transferGather(f *scope, n *tf.NodeDef, in []*tensor) []*tensor {
	x, indices, along := in[0], in[1], in[2]
	if !isIndependent(indices, along) || x.kind == opaque || n.GetAttr()["batch_dims"].GetI() != 0 || !along.intsKnown || len(along.ints) != 1 || !x.ranked || !indices.ranked {
		return nil
	}
	at, known := axisOf(along.ints[0], len(x.axes))
	if !known {
		return nil
	}
	if isIndependent(x) {
		if !x.intsKnown || len(x.axes) != 1 || !indices.intsKnown {
			return nil
		}
		var ints []symbolicSize
		for _, s := range indices.ints {
			i, known := axisOf(s, len(x.ints))
			if !known {
				return nil
			}
			ints = append(ints, x.ints[i])
		}
		return single(withInts(derivedFrom(indices), ints, indices.axes...))
	}
	t := x.with(slices.Clone(x.axes))
	t.change.Moves |= x.axes[at].dims()
	t.change.Permutes |= x.axes[at].dims()
	t.change.DependsOnSize |= indices.sizeDependencies()
	switch {
	case len(indices.axes) == 0:
		t.axes = slices.Delete(t.axes, at, at+1)
	case len(indices.axes) == 1 && len(x.axes[at]) == 1:
		t.axes[at] = axis{{indices.axes[0].size(), x.axes[at][0].dim}}
	default:
		return nil
	}
	return single(t)
}

// resized changes the size of an axis from which values were taken or to which values were added.
func (t *tensor) resized(at int, to symbolicSize) bool {
	if len(t.axes[at]) != 1 {
		return false
	}
	t.change.Moves |= t.axes[at].dims()
	t.change.Permutes |= t.axes[at].dims()
	t.axes[at] = axis{{to, t.axes[at][0].dim}}
	return true
}

func transferSlice(f *scope, _ *tf.NodeDef, in []*tensor) []*tensor {
	x, begin, sizes := in[0], in[1], in[2]
	if x.kind != derived || !x.ranked || !isIndependent(begin, sizes) {
		return nil
	}
	t := x.with(slices.Clone(x.axes))
	for i, a := range x.axes {
		first, count := f.at(begin, i), f.at(sizes, i)
		from, known := first.constant()
		switch n, whole := count.constant(); {
		case count.is(a.size()):
			// The start does not matter: only a slice from 0 has this size.
			t.change.DependsOnSize |= dependentDims(a, count)
			continue
		case known && from == 0 && whole && n < 0:
			continue
		case whole && n < 0:
			count = f.unknown(first.dependsOn | a.dims())
		}
		if t.change.DependsOnSize |= first.dependsOn | count.dependsOn; !t.resized(i, count) {
			return nil
		}
	}
	return single(t)
}

// dependentDims returns the dimensions of an axis whose size must be exactly the constant size to. It returns
// none if that size is not a constant, because it then adapts to the axis.
func dependentDims(a axis, to symbolicSize) Dims {
	if _, known := to.constant(); known && !isSizeOne(a) {
		return a.dims()
	}
	return 0
}

// at returns integer i of a vector. A vector of one integer stands for any number of equal ones.
func (s *scope) at(row *tensor, i int) symbolicSize {
	if row.intsKnown && len(row.ints) == 1 {
		i = 0
	}
	if row.intsKnown && i < len(row.ints) {
		return row.ints[i]
	}
	return s.unknown(row.sizeDependencies())
}

func transferStridedSlice(f *scope, n *tf.NodeDef, in []*tensor) []*tensor {
	x := in[0]
	for _, t := range in[1:] {
		if !isIndependent(t) || !t.intsKnown || len(t.ints) != len(in[1].ints) {
			return nil
		}
	}
	if n.GetAttr()["ellipsis_mask"].GetI() != 0 || !x.ranked || x.kind == opaque {
		return nil
	}
	if isIndependent(x) {
		return single(f.stridedInts(n, in))
	}
	t := x.with([]axis{})
	rest := x.axes
	for i := range in[1].ints {
		mask := func(key string) bool { return n.GetAttr()[key].GetI()&(1<<i) != 0 }
		if mask("new_axis_mask") {
			t.axes = append(t.axes, axis{})
			continue
		}
		if len(rest) == 0 {
			return nil
		}
		a := rest[0]
		rest = rest[1:]
		if mask("shrink_axis_mask") {
			if !isSizeOne(a) || a.dims() != 0 {
				return nil
			}
			continue
		}
		t.axes = append(t.axes, a)
		stride, known := in[3].ints[i].constant()
		all := mask("begin_mask") && mask("end_mask")
		if all && known && stride == 1 {
			continue
		}
		if all && known && stride == -1 {
			t.change.Moves |= a.dims()
			t.change.DependsOnSize |= in[3].ints[i].dependsOn
			continue
		}
		dependsOn := in[1].ints[i].dependsOn | in[2].ints[i].dependsOn | in[3].ints[i].dependsOn
		to := f.unknown(dependsOn | a.dims())
		switch has, sized := a.size().constant(); {
		case sized && known && stride == 1:
			begin, end := int64(0), has
			if b, fixed := in[1].ints[i].constant(); !mask("begin_mask") {
				begin, sized = within(b, has), fixed
			}
			if e, fixed := in[2].ints[i].constant(); !mask("end_mask") {
				end, sized = within(e, has), sized && fixed
			}
			if sized {
				to = literal(max(0, end-begin))
			}
		}
		if t.change.DependsOnSize |= dependsOn; !t.resized(len(t.axes)-1, to) {
			return nil
		}
	}
	t.axes = append(t.axes, rest...)
	return single(t)
}

// stridedInts returns a slice of a vector of integers, or one of them.
func (s *scope) stridedInts(n *tf.NodeDef, in []*tensor) *tensor {
	x := in[0]
	if !x.intsKnown || len(x.axes) != 1 || len(in[1].ints) != 1 {
		return nil
	}
	if n.GetAttr()["new_axis_mask"].GetI() != 0 {
		return nil
	}
	count := int64(len(x.ints))
	begin, beginKnown := in[1].ints[0].constant()
	end, endKnown := in[2].ints[0].constant()
	stride, strideKnown := in[3].ints[0].constant()
	if !beginKnown || !endKnown || !strideKnown || stride != 1 {
		return nil
	}
	begin = within(begin, count)
	if n.GetAttr()["begin_mask"].GetI() != 0 {
		begin = 0
	}
	if n.GetAttr()["shrink_axis_mask"].GetI() != 0 {
		if begin >= count {
			return nil
		}
		return withInts(derivedFrom(), []symbolicSize{x.ints[begin]}).ofKind(x)
	}
	end = within(end, count)
	if n.GetAttr()["end_mask"].GetI() != 0 {
		end = count
	}
	ints := x.ints[begin:max(begin, end)]
	return withInts(derivedFrom(), ints, newAxis(literal(int64(len(ints))))).ofKind(x)
}

// within returns a position in a vector of count values, clamped to its ends. A negative at counts from the
// end.
func within(at, count int64) int64 {
	if at < 0 {
		at += count
	}
	return min(max(at, 0), count)
}

func (t *tensor) ofKind(x *tensor) *tensor {
	t.kind = x.kind
	return t
}
