package dataflow

import (
	"slices"

	tf "github.com/pecan-ml/pecan/proto/tensorflow"
)

// Ops that move values, and those that compute with sizes.

func transferPack(f *scope, n *tf.NodeDef, in []*tensor) []*tensor {
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
	return one(holding(derivedFrom(in...), ints, plain(literal(int64(len(ints))))))
}

func transferUnpack(_ *scope, n *tf.NodeDef, in []*tensor) (out []*tensor) {
	x := in[0]
	if !still(x) || !x.counted || len(x.axes) != 1 || int64(len(x.ints)) != n.GetAttr()["num"].GetI() {
		return nil
	}
	for _, s := range x.ints {
		out = append(out, holding(derivedFrom(), []size{s}))
	}
	return out
}

func transferConcat(_ *scope, _ *tf.NodeDef, in []*tensor) []*tensor {
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
	return one(holding(derivedFrom(in...), ints, plain(literal(int64(len(ints))))))
}

func transferPad(f *scope, n *tf.NodeDef, in []*tensor) []*tensor {
	x, paddings := in[0], in[1]
	if x.kind != derived || !x.ranked || !still(in[1:]...) {
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

func transferTile(f *scope, _ *tf.NodeDef, in []*tensor) []*tensor {
	x, times := in[0], in[1]
	if x.kind == opaque || !x.ranked || !still(times) || !times.counted || len(times.ints) != len(x.axes) {
		return nil
	}
	t := x.with(slices.Clone(x.axes))
	if still(x) {
		t = derivedFrom(in...).with(slices.Clone(x.axes))
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

func transferReverse(_ *scope, _ *tf.NodeDef, in []*tensor) []*tensor {
	x, over := in[0], in[1]
	if x.kind != derived || !x.ranked || !still(over) || !over.counted {
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

func transferTranspose(_ *scope, _ *tf.NodeDef, in []*tensor) []*tensor {
	x, order := in[0], in[1]
	if x.kind != derived || !x.ranked || !still(order) || !order.counted || len(order.ints) != len(x.axes) {
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

func transferExpandDims(_ *scope, _ *tf.NodeDef, in []*tensor) []*tensor {
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

func transferSqueeze(_ *scope, n *tf.NodeDef, in []*tensor) []*tensor {
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

func transferReshape(f *scope, _ *tf.NodeDef, in []*tensor) []*tensor {
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
