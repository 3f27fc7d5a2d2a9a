package dataflow

import (
	"slices"

	tf "github.com/pecan-ml/pecan/proto/tensorflow"
)

// mergeBranches returns a tensor that is one of two.
func (s *scope) mergeBranches(a, b *tensor) *tensor {
	switch {
	case a.kind == opaque:
		return a
	case b.kind == opaque:
		return b
	case a.kind == derived && b.kind == derived:
		if !a.ranked || !b.ranked || len(a.axes) != len(b.axes) {
			return opaqueTensor("its shape depends on a choice")
		}
		t := a.with(slices.Clone(a.axes))
		for i, other := range b.axes {
			mine := a.axes[i]
			if len(mine) != 1 || len(other) != 1 || mine[0].dim != other[0].dim {
				if mine.dims() != other.dims() || !mine.size().is(other.size()) {
					return opaqueTensor("its shape depends on a choice")
				}
			} else if !mine.size().is(other.size()) {
				t.axes[i] = axis{{s.unknown(mine[0].size.dependsOn | other[0].size.dependsOn), mine[0].dim}}
			}
		}
		t.change = a.change.union(b.change)
		return t
	case a.kind == derived || b.kind == derived:
		return opaqueTensor("it may be replaced by values that do not depend on it")
	}
	t := derivedFrom(a, b)
	if a.ranked && b.ranked && len(a.axes) == len(b.axes) {
		t.ranked = true
		for i := range a.axes {
			if t.axes = append(t.axes, newAxis(a.axes[i].size())); !a.axes[i].size().is(b.axes[i].size()) {
				t.axes[i] = newAxis(s.unknown(0))
			}
		}
	}
	return t
}

func transferSelect(f *scope, n *tf.NodeDef, in []*tensor) []*tensor {
	if len(in) != 3 || in[0].kind == derived || in[0].kind == opaque {
		return nil
	}
	if !in[0].ranked || len(in[0].axes) > 0 && n.GetOp() == "Select" {
		if isIndependent(in...) {
			return nil
		}
		return single(opaqueTensor("it is not known which values are chosen"))
	}
	t := f.mergeBranches(in[1], in[2])
	if t.kind == opaque {
		return single(t)
	}
	if t.kind != derived {
		return single(derivedFrom(in...))
	}
	was := t.change
	if t = broadcast(t, in[0], true, nil); t.kind == derived {
		t.change.Computes, t.change.Arithmetic, t.change.Affine = was.Computes, was.Arithmetic, was.Affine
		t.change.Inserts, t.change.value = was.Inserts, was.value
	}
	return single(t)
}

func transferBranches(f *scope, n *tf.NodeDef, in []*tensor) []*tensor {
	if in[0].kind == derived || in[0].kind == opaque {
		return nil
	}
	var out [2][]*tensor
	for i, key := range []string{"then_branch", "else_branch"} {
		called := f.g.Function(n.GetAttr()[key].GetFunc().GetName())
		if called == nil || len(called.GetSignature().GetInputArg()) != len(in)-1 {
			return nil
		}
		out[i] = f.call(called, in[1:])
	}
	if len(out[0]) != len(out[1]) {
		return nil
	}
	var results []*tensor
	for i := range out[0] {
		t := *f.mergeBranches(out[0][i], out[1][i])
		if t.change.DependsOnSize |= in[0].sizeDependencies(); t.kind == independent && in[0].kind == sizeOnly {
			t.kind = sizeOnly
		}
		results = append(results, &t)
	}
	return results
}

func transferCall(f *scope, n *tf.NodeDef, in []*tensor) []*tensor {
	called := f.g.Function(n.GetAttr()["f"].GetFunc().GetName())
	if called == nil || len(called.GetSignature().GetInputArg()) != len(in) {
		return nil
	}
	return f.call(called, in)
}
