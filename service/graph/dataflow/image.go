package dataflow

import (
	"slices"

	tf "github.com/pecan-ml/pecan/proto/tensorflow"
	"github.com/pecan-ml/pecan/service/graph/nodedef"
)

// This file has the ops on batches of images.

// transferResize resizes the images of a batch. Argument number sizes has the new sizes.
func transferResize(sizes int) transfer {
	return func(f *scope, n *tf.NodeDef, in []*tensor) []*tensor {
		x := in[0]
		if x.kind != derived || !x.ranked || len(x.axes) != 4 || len(in) <= sizes || !isIndependent(in[1:]...) {
			return nil
		}
		t := x.with(slices.Clone(x.axes))
		for i := range 2 {
			at := x.axes[1+i]
			if len(at) != 1 || at[0].dim < 0 {
				return nil
			}
			to := f.unknown(in[sizes].sizeDependencies())
			if in[sizes].intsKnown && len(in[sizes].ints) == 2 {
				to = in[sizes].ints[i]
			}
			t.axes[1+i] = axis{{to, at[0].dim}}
			if TakesNearest(n) {
				t.change.Moves |= at.dims()
				t.change.Permutes |= at.dims()
			} else {
				t.change.Mixes |= at.dims()
			}
			if !mirrors(n) {
				t.change.Skews |= at.dims()
			}
		}
		for _, other := range in[1:] {
			t.change.DependsOnSize |= other.sizeDependencies()
		}
		if !TakesNearest(n) {
			t.change.computed(nil)
		} else if string(n.GetAttr()["fill_mode"].GetS()) == "CONSTANT" {
			// The op inserts a fixed value outside the image.
			t.change.inserted(f.constant(n, "fill_value", n.GetAttr()["dtype"].GetType()))
		}
		return single(t)
	}
}

// transferScaled handles the resize that uses all values of an image when it shrinks it ("antialias").
func transferScaled(f *scope, n *tf.NodeDef, in []*tensor) []*tensor {
	// It mixes the same dimensions as any other resize, whatever the scale is.
	out := transferResize(1)(f, n, in)
	if out == nil || len(in) != 4 || !f.wholeImage(n, in) {
		return out
	}
	x, t := in[0], out[0]
	for i := range 2 {
		at := x.axes[1+i]
		t.change.Skews &^= at.dims() &^ x.change.Skews
		// The function may contain the old size as a constant.
		t.change.DependsOnSize |= dependentDims(at, at.size())
	}
	return out
}

// wholeImage reports whether an image is scaled by the quotient of its new and old sizes, and not shifted. In
// that case a mirrored image gives a mirrored result.
func (s *scope) wholeImage(n *tf.NodeDef, in []*tensor) bool {
	x, sizes := in[0], in[1]
	quotient, shift := s.nodes[nodedef.InputNode(n.GetInput()[2])], s.nodes[nodedef.InputNode(n.GetInput()[3])]
	if quotient.GetOp() != "RealDiv" || shift.GetOp() != "Const" || !nodedef.IsZero(nodedef.Tensor(shift)) {
		return false
	}
	to, from := s.input(quotient.GetInput()[0]), s.input(quotient.GetInput()[1])
	if slices.ContainsFunc([]*tensor{sizes, to, from}, func(row *tensor) bool { return !row.intsKnown || len(row.ints) != 2 }) {
		return false
	}
	for i := range 2 {
		if !to.ints[i].is(sizes.ints[i]) || !from.ints[i].is(x.axes[1+i].size()) {
			return false
		}
	}
	return true
}

// TakesNearest reports whether each value of a resized or rotated image is one of its old values, or an
// inserted one.
func TakesNearest(n *tf.NodeDef) bool {
	return n.GetOp() == "ResizeNearestNeighbor" || n.GetOp() == ImageProjectiveOp && string(n.GetAttr()["interpolation"].GetS()) == "NEAREST"
}

// ImageProjectiveOp is the op that rotates, shifts and shears images.
const ImageProjectiveOp = "ImageProjectiveTransformV3"

// mirrors reports whether a mirrored image gives a mirrored result.
func mirrors(n *tf.NodeDef) bool {
	switch n.GetOp() {
	case "ResizeArea":
		return true
	case "ResizeBilinear", "ResizeBicubic":
		return n.GetAttr()["half_pixel_centers"].GetB() || n.GetAttr()["align_corners"].GetB()
	}
	return false
}

func transferDepthwise(f *scope, n *tf.NodeDef, in []*tensor) []*tensor {
	x, filter := in[0], in[1]
	if x.kind != derived || !x.ranked || len(x.axes) != 4 || !isIndependent(filter) || !filter.ranked || len(filter.axes) != 4 || !isSizeOne(filter.axes[3]) ||
		string(n.GetAttr()["data_format"].GetS()) == "NCHW" || string(n.GetAttr()["padding"].GetS()) != "SAME" ||
		slices.ContainsFunc(n.GetAttr()["strides"].GetList().GetI(), func(s int64) bool { return s != 1 }) {
		return nil
	}
	channels := filter.axes[2]
	t := x.with(x.axes)
	t.change.Mixes |= x.axes[1].dims() | x.axes[2].dims()
	t.change.Skews |= x.axes[1].dims() | x.axes[2].dims()
	if len(channels) != 1 || channels[0].dim != uniform {
		t.change.PositionDependent |= x.axes[3].dims()
	}
	if t.change.DependsOnSize |= filter.sizeDependencies() | dependentDims(x.axes[3], channels.size()); !channels.size().is(x.axes[3].size()) {
		t.change.DependsOnSize |= x.axes[3].dims()
	}
	t.change.computed(nil)
	return single(t)
}
