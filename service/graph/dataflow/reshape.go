package dataflow

import (
	"slices"

	tf "github.com/pecan-ml/pecan/proto/tensorflow"
)

// This file has the ops that move values, and those that compute with sizes.

func transferPack(f *scope, n *tf.NodeDef, in []*tensor) []*tensor {
	if !isIndependent(in...) || n.GetAttr()["axis"].GetI() != 0 {
		return nil
	}
	var ints []symbolicSize
	for _, t := range in {
		if !t.ranked || len(t.axes) > 0 {
			return nil
		}
		if ints = append(ints, t.ints...); !t.intsKnown {
			ints = append(ints, f.unknown(t.sizeDependencies()))
		}
	}
	return single(withInts(derivedFrom(in...), ints, newAxis(literal(int64(len(ints))))))
}

func transferUnpack(_ *scope, n *tf.NodeDef, in []*tensor) (out []*tensor) {
	x := in[0]
	if !isIndependent(x) || !x.intsKnown || len(x.axes) != 1 || int64(len(x.ints)) != n.GetAttr()["num"].GetI() {
		return nil
	}
	for _, s := range x.ints {
		out = append(out, withInts(derivedFrom(), []symbolicSize{s}))
	}
	return out
}

func transferConcat(_ *scope, _ *tf.NodeDef, in []*tensor) []*tensor {
	if !isIndependent(in...) || len(in) == 0 {
		return nil
	}
	var ints []symbolicSize
	for _, t := range in[:len(in)-1] {
		if !t.intsKnown || len(t.axes) != 1 {
			return nil
		}
		ints = append(ints, t.ints...)
	}
	return single(withInts(derivedFrom(in...), ints, newAxis(literal(int64(len(ints))))))
}

func transferPad(f *scope, n *tf.NodeDef, in []*tensor) []*tensor {
	x, paddings := in[0], in[1]
	if x.kind != derived || !x.ranked || !isIndependent(in[1:]...) {
		return nil
	}
	t := x.with(slices.Clone(x.axes))
	t.change.DependsOnSize |= paddings.sizeDependencies()
	for i, a := range x.axes {
		to := f.unknown(paddings.sizeDependencies())
		if paddings.intsKnown && len(paddings.ints) == 2*len(x.axes) {
			before, b := paddings.ints[2*i].constant()
			after, e := paddings.ints[2*i+1].constant()
			if b && e && before == 0 && after == 0 {
				continue
			}
			if has, known := a.size().constant(); known && b && e {
				to = literal(has + before + after)
			}
		}
		if !t.resized(i, to) {
			return nil
		}
	}
	switch n.GetOp() {
	case "Pad":
		t.change.inserted(0, true)
	case "PadV2":
		t.change.inserted(f.constant(n, "constant_values", n.GetAttr()["T"].GetType()))
	}
	return single(t)
}

func transferTile(f *scope, _ *tf.NodeDef, in []*tensor) []*tensor {
	x, times := in[0], in[1]
	if x.kind == opaque || !x.ranked || !isIndependent(times) || !times.intsKnown || len(times.ints) != len(x.axes) {
		return nil
	}
	t := x.with(slices.Clone(x.axes))
	if isIndependent(x) {
		t = derivedFrom(in...).with(slices.Clone(x.axes))
	}
	t.change.DependsOnSize |= times.sizeDependencies()
	for i, a := range x.axes {
		n, known := times.ints[i].constant()
		switch {
		case known && n == 1:
		case isIndependent(x) && isSizeOne(a):
			t.axes[i] = axis{{times.ints[i], uniform}}
		case isIndependent(x):
			t.axes[i] = newAxis(productOf(a.size(), times.ints[i]))
		case len(a) == 0:
			t.axes[i] = newAxis(times.ints[i])
		case !t.resized(i, productOf(a.size(), times.ints[i])):
			return nil
		}
	}
	return single(t)
}

func transferReverse(_ *scope, _ *tf.NodeDef, in []*tensor) []*tensor {
	x, over := in[0], in[1]
	if x.kind != derived || !x.ranked || !isIndependent(over) || !over.intsKnown {
		return nil
	}
	t := x.with(x.axes)
	for _, s := range over.ints {
		at, known := axisOf(s, len(x.axes))
		if !known {
			return nil
		}
		t.change.Moves |= x.axes[at].dims()
	}
	return single(t)
}

func transferTranspose(_ *scope, _ *tf.NodeDef, in []*tensor) []*tensor {
	x, order := in[0], in[1]
	if x.kind != derived || !x.ranked || !isIndependent(order) || !order.intsKnown || len(order.ints) != len(x.axes) {
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
	return single(t)
}

func transferExpandDims(_ *scope, _ *tf.NodeDef, in []*tensor) []*tensor {
	x, where := in[0], in[1]
	if x.kind == opaque || !x.ranked || !where.intsKnown || len(where.ints) != 1 {
		return nil
	}
	at, known := axisOf(where.ints[0], len(x.axes)+1)
	if !known {
		return nil
	}
	t := x.with(slices.Insert(slices.Clone(x.axes), at, axis{}))
	t.ints, t.intsKnown = x.ints, x.intsKnown
	return single(t)
}

func transferSqueeze(_ *scope, n *tf.NodeDef, in []*tensor) []*tensor {
	x := in[0]
	if x.kind == opaque || !x.ranked {
		return nil
	}
	removed := map[int]bool{}
	for _, d := range n.GetAttr()["squeeze_dims"].GetList().GetI() {
		at, known := axisOf(literal(d), len(x.axes))
		if !known || !isSizeOne(x.axes[at]) {
			return nil
		}
		removed[at] = true
	}
	t := x.with([]axis{})
	t.ints, t.intsKnown = x.ints, x.intsKnown
	for i, a := range x.axes {
		if len(removed) == 0 {
			if _, known := a.size().constant(); !known {
				return nil
			}
			if isSizeOne(a) {
				continue
			}
		}
		if !removed[i] {
			t.axes = append(t.axes, a)
		}
	}
	return single(t)
}

func transferReshape(f *scope, _ *tf.NodeDef, in []*tensor) []*tensor {
	x, to := in[0], in[1]
	if x.kind == opaque || !isIndependent(to) || !to.intsKnown {
		return nil
	}
	if isIndependent(x) {
		t := x.with([]axis{})
		t.ints, t.intsKnown = x.ints, x.intsKnown
		for _, s := range to.ints {
			if n, known := s.constant(); known && n < 0 {
				s = f.unknown(x.sizeDependencies())
			}
			t.axes = append(t.axes, newAxis(s))
		}
		return single(t)
	}
	if !x.ranked {
		return nil
	}
	var parts []axisPart
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
		return single(opaqueTensor("a reshape divides its dimensions differently"))
	}
	t := x.with(axes)
	for i, a := range axes {
		t.change.DependsOnSize |= dependentDims(a, to.ints[i])
	}
	return single(t)
}

// cutAxes groups parts into axes of the given sizes, of which one may be open (-1). It returns nil if the
// parts do not fit.
func cutAxes(parts []axisPart, sizes []symbolicSize) []axis {
	axes := make([]axis, len(sizes))
	open := slices.IndexFunc(sizes, func(s symbolicSize) bool { n, known := s.constant(); return known && n < 0 })
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
		if !isSizeOne(axis(parts)) {
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

// cutAxis takes parts until their product is the given size.
func cutAxis(parts []axisPart, to symbolicSize) (a axis, rest []axisPart, fits bool) {
	for !a.size().is(to) {
		if len(parts) == 0 {
			return nil, nil, false
		}
		a, parts = append(a, parts[0]), parts[1:]
	}
	return a, parts, true
}
