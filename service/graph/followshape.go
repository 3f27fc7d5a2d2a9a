package graph

import (
	"slices"

	tf "github.com/pecan-ml/pecan/proto/tensorflow"
)

// Ops that move values, and those that compute with sizes.

func followPack(f *scope, n *tf.NodeDef, in []*tensor) []*tensor {
	if !still(in...) || n.GetAttr()["axis"].GetI() != 0 {
		return nil
	}
	var ints []size
	for _, t := range in {
		if !t.ranked || len(t.axes) > 0 {
			return nil
		}
		if ints = append(ints, t.ints...); !t.counted {
			ints = append(ints, f.unknown(t.looks()))
		}
	}
	return one(holding(derived(in...), ints, plain(literal(int64(len(ints))))))
}

func followUnpack(_ *scope, n *tf.NodeDef, in []*tensor) (out []*tensor) {
	x := in[0]
	if !still(x) || !x.counted || len(x.axes) != 1 || int64(len(x.ints)) != n.GetAttr()["num"].GetI() {
		return nil
	}
	for _, s := range x.ints {
		out = append(out, holding(derived(), []size{s}))
	}
	return out
}

func followConcat(_ *scope, _ *tf.NodeDef, in []*tensor) []*tensor {
	if !still(in...) || len(in) == 0 {
		return nil
	}
	var ints []size
	for _, t := range in[:len(in)-1] {
		if !t.counted || len(t.axes) != 1 {
			return nil
		}
		ints = append(ints, t.ints...)
	}
	return one(holding(derived(in...), ints, plain(literal(int64(len(ints))))))
}

func followGather(f *scope, n *tf.NodeDef, in []*tensor) []*tensor {
	x, indices, along := in[0], in[1], in[2]
	if !still(indices, along) || x.kind == opaque || n.GetAttr()["batch_dims"].GetI() != 0 || !along.counted || len(along.ints) != 1 || !x.ranked || !indices.ranked {
		return nil
	}
	at, known := axisOf(along.ints[0], len(x.axes))
	if !known {
		return nil
	}
	if still(x) {
		if !x.counted || len(x.axes) != 1 || !indices.counted {
			return nil
		}
		var ints []size
		for _, s := range indices.ints {
			i, known := axisOf(s, len(x.ints))
			if !known {
				return nil
			}
			ints = append(ints, x.ints[i])
		}
		return one(holding(derived(indices), ints, indices.axes...))
	}
	t := x.with(slices.Clone(x.axes))
	t.change.Moves |= x.axes[at].places()
	t.change.Jumbles |= x.axes[at].places()
	t.change.Looks |= indices.looks()
	switch {
	case len(indices.axes) == 0:
		t.axes = slices.Delete(t.axes, at, at+1)
	case len(indices.axes) == 1 && len(x.axes[at]) == 1:
		t.axes[at] = axis{{indices.axes[0].size(), x.axes[at][0].place}}
	default:
		return nil
	}
	return one(t)
}

// resized gives an axis another size, from which values were taken or to which some were added.
func (t *tensor) resized(at int, to size) bool {
	if len(t.axes[at]) != 1 {
		return false
	}
	t.change.Moves |= t.axes[at].places()
	t.change.Jumbles |= t.axes[at].places()
	t.axes[at] = axis{{to, t.axes[at][0].place}}
	return true
}

func followSlice(f *scope, _ *tf.NodeDef, in []*tensor) []*tensor {
	x, begin, sizes := in[0], in[1], in[2]
	if x.kind != image || !x.ranked || !still(begin, sizes) {
		return nil
	}
	t := x.with(slices.Clone(x.axes))
	for i, a := range x.axes {
		first, count := f.at(begin, i), f.at(sizes, i)
		from, known := first.constant()
		switch n, whole := count.constant(); {
		case count.is(a.size()):
			// Whatever it begins at: only from 0 on there are so many.
			t.change.Looks |= tied(a, count)
			continue
		case known && from == 0 && whole && n < 0:
			continue
		case whole && n < 0:
			count = f.unknown(first.looks | a.places())
		}
		if t.change.Looks |= first.looks | count.looks; !t.resized(i, count) {
			return nil
		}
	}
	return one(t)
}

// tied are the places of an axis whose size had to be the number that it is: they are none where it is whatever it may be.
func tied(a axis, to size) Dims {
	if _, known := to.constant(); known && !ones(a) {
		return a.places()
	}
	return 0
}

// at is one of a row of integers, or the only one, which stands for a row of them.
func (f *scope) at(row *tensor, i int) size {
	if row.counted && len(row.ints) == 1 {
		i = 0
	}
	if row.counted && i < len(row.ints) {
		return row.ints[i]
	}
	return f.unknown(row.looks())
}

func followStridedSlice(f *scope, n *tf.NodeDef, in []*tensor) []*tensor {
	x := in[0]
	for _, t := range in[1:] {
		if !still(t) || !t.counted || len(t.ints) != len(in[1].ints) {
			return nil
		}
	}
	if n.GetAttr()["ellipsis_mask"].GetI() != 0 || !x.ranked || x.kind == opaque {
		return nil
	}
	if still(x) {
		return one(f.stridedInts(n, in))
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
			if !ones(a) || a.places() != 0 {
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
			t.change.Moves |= a.places()
			t.change.Looks |= in[3].ints[i].looks
			continue
		}
		looks := in[1].ints[i].looks | in[2].ints[i].looks | in[3].ints[i].looks
		to := f.unknown(looks | a.places())
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
		if t.change.Looks |= looks; !t.resized(len(t.axes)-1, to) {
			return nil
		}
	}
	t.axes = append(t.axes, rest...)
	return one(t)
}

// stridedInts is a stretch of a row of integers, or one of them.
func (f *scope) stridedInts(n *tf.NodeDef, in []*tensor) *tensor {
	x := in[0]
	if !x.counted || len(x.axes) != 1 || len(in[1].ints) != 1 {
		return nil
	}
	if n.GetAttr()["new_axis_mask"].GetI() != 0 {
		return nil
	}
	count := int64(len(x.ints))
	begin, b := in[1].ints[0].constant()
	end, e := in[2].ints[0].constant()
	stride, s := in[3].ints[0].constant()
	if !b || !e || !s || stride != 1 {
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
		return holding(derived(), []size{x.ints[begin]}).ofKind(x)
	}
	end = within(end, count)
	if n.GetAttr()["end_mask"].GetI() != 0 {
		end = count
	}
	ints := x.ints[begin:max(begin, end)]
	return holding(derived(), ints, plain(literal(int64(len(ints))))).ofKind(x)
}

// within is a place in a row of so many, which may be counted from the end, and beyond it.
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

func followPad(f *scope, n *tf.NodeDef, in []*tensor) []*tensor {
	x, paddings := in[0], in[1]
	if x.kind != image || !x.ranked || !still(in[1:]...) {
		return nil
	}
	t := x.with(slices.Clone(x.axes))
	t.change.Looks |= paddings.looks()
	for i, a := range x.axes {
		to := f.unknown(paddings.looks())
		if paddings.counted && len(paddings.ints) == 2*len(x.axes) {
			before, b := paddings.ints[2*i].constant()
			behind, e := paddings.ints[2*i+1].constant()
			if b && e && before == 0 && behind == 0 {
				continue
			}
			if has, known := a.size().constant(); known && b && e {
				to = literal(has + before + behind)
			}
		}
		if !t.resized(i, to) {
			return nil
		}
	}
	// What another step computes would not be computed of what is put in.
	t.change.Computes = t.change.Computes || n.GetOp() != "MirrorPad"
	t.change.Reckons = t.change.Computes
	return one(t)
}

func followTile(f *scope, _ *tf.NodeDef, in []*tensor) []*tensor {
	x, times := in[0], in[1]
	if x.kind == opaque || !x.ranked || !still(times) || !times.counted || len(times.ints) != len(x.axes) {
		return nil
	}
	t := x.with(slices.Clone(x.axes))
	if still(x) {
		t = derived(in...).with(slices.Clone(x.axes))
	}
	t.change.Looks |= times.looks()
	for i, a := range x.axes {
		n, known := times.ints[i].constant()
		switch {
		case known && n == 1:
		case still(x) && ones(a):
			t.axes[i] = axis{{times.ints[i], alike}}
		case still(x):
			t.axes[i] = plain(productOf(a.size(), times.ints[i]))
		case len(a) == 0:
			t.axes[i] = plain(times.ints[i])
		case !t.resized(i, productOf(a.size(), times.ints[i])):
			return nil
		}
	}
	return one(t)
}

func followReverse(_ *scope, _ *tf.NodeDef, in []*tensor) []*tensor {
	x, over := in[0], in[1]
	if x.kind != image || !x.ranked || !still(over) || !over.counted {
		return nil
	}
	t := x.with(x.axes)
	for _, s := range over.ints {
		at, known := axisOf(s, len(x.axes))
		if !known {
			return nil
		}
		t.change.Moves |= x.axes[at].places()
	}
	return one(t)
}

func followTranspose(_ *scope, _ *tf.NodeDef, in []*tensor) []*tensor {
	x, order := in[0], in[1]
	if x.kind != image || !x.ranked || !still(order) || !order.counted || len(order.ints) != len(x.axes) {
		return nil
	}
	t := x.with(nil)
	for _, s := range order.ints {
		at, known := axisOf(s, len(x.axes))
		if !known {
			return nil
		}
		t.axes = append(t.axes, x.axes[at])
	}
	return one(t)
}

func followExpandDims(_ *scope, _ *tf.NodeDef, in []*tensor) []*tensor {
	x, where := in[0], in[1]
	if x.kind == opaque || !x.ranked || !where.counted || len(where.ints) != 1 {
		return nil
	}
	at, known := axisOf(where.ints[0], len(x.axes)+1)
	if !known {
		return nil
	}
	t := x.with(slices.Insert(slices.Clone(x.axes), at, axis{}))
	t.ints, t.counted = x.ints, x.counted
	return one(t)
}

func followSqueeze(_ *scope, n *tf.NodeDef, in []*tensor) []*tensor {
	x := in[0]
	if x.kind == opaque || !x.ranked {
		return nil
	}
	gone := map[int]bool{}
	for _, d := range n.GetAttr()["squeeze_dims"].GetList().GetI() {
		at, known := axisOf(literal(d), len(x.axes))
		if !known || !ones(x.axes[at]) {
			return nil
		}
		gone[at] = true
	}
	t := x.with([]axis{})
	t.ints, t.counted = x.ints, x.counted
	for i, a := range x.axes {
		if len(gone) == 0 {
			if _, known := a.size().constant(); !known {
				return nil
			}
			if ones(a) {
				continue
			}
		}
		if !gone[i] {
			t.axes = append(t.axes, a)
		}
	}
	return one(t)
}

func followReshape(f *scope, _ *tf.NodeDef, in []*tensor) []*tensor {
	x, to := in[0], in[1]
	if x.kind == opaque || !still(to) || !to.counted {
		return nil
	}
	if still(x) {
		t := x.with([]axis{})
		t.ints, t.counted = x.ints, x.counted
		for _, s := range to.ints {
			if n, known := s.constant(); known && n < 0 {
				s = f.unknown(x.looks())
			}
			t.axes = append(t.axes, plain(s))
		}
		return one(t)
	}
	if !x.ranked {
		return nil
	}
	var parts []part
	for _, a := range x.axes {
		for _, p := range a {
			if n, known := p.size.constant(); known && n == 0 {
				return nil
			}
			parts = append(parts, p)
		}
	}
	axes := cutAxes(parts, to.ints)
	if axes == nil {
		return one(unclear("its dimensions are cut otherwise"))
	}
	t := x.with(axes)
	for i, a := range axes {
		t.change.Looks |= tied(a, to.ints[i])
	}
	return one(t)
}

// cutAxes puts parts together to axes of some sizes, of which one may be left open (-1); nil where they do not fit.
func cutAxes(parts []part, sizes []size) []axis {
	axes := make([]axis, len(sizes))
	open := slices.IndexFunc(sizes, func(s size) bool { n, known := s.constant(); return known && n < 0 })
	front := len(sizes)
	if open >= 0 {
		front = open
	}
	for i := range front {
		var fits bool
		if axes[i], parts, fits = cutAxis(parts, sizes[i]); !fits {
			return nil
		}
	}
	if open < 0 {
		if !ones(axis(parts)) {
			return nil
		}
		return axes
	}
	slices.Reverse(parts)
	for i := len(sizes) - 1; i > open; i-- {
		var fits bool
		if axes[i], parts, fits = cutAxis(parts, sizes[i]); !fits {
			return nil
		}
		slices.Reverse(axes[i])
	}
	slices.Reverse(parts)
	axes[open] = parts
	return axes
}

// cutAxis takes as many parts as have a size together.
func cutAxis(parts []part, to size) (a axis, rest []part, fits bool) {
	for !a.size().is(to) {
		if len(parts) == 0 {
			return nil, nil, false
		}
		a, parts = append(a, parts[0]), parts[1:]
	}
	return a, parts, true
}
