package dataflow

import (
	"math"
	"slices"

	tf "github.com/pecan-ml/pecan/proto/tensorflow"
	"github.com/pecan-ml/pecan/service/graph/nodedef"
)

// This file evaluates single numbers through the ops that compute value by value (constant propagation). A step that
// inserts a constant may pass a step that returns the same constant for it, to the last bit.

// scalarFunction computes what a step returns for one number; false if that is not certain. A nil scalarFunction is never
// certain.
type scalarFunction func(v float64) (float64, bool)

func (f scalarFunction) of(v float64) (float64, bool) {
	if f == nil {
		return 0, false
	}
	return f(v)
}

func unchanged(v float64) (float64, bool) { return v, true }

// keeps reports whether a step returns a number as it is.
func (c Change) keeps(v float64) bool {
	got, certain := c.value.of(v)
	return certain && sameBits(got, v)
}

func sameBits(a, b float64) bool { return math.Float64bits(a) == math.Float64bits(b) }

// agree evaluates two branches that must return the same number.
func agree(a, b scalarFunction) scalarFunction {
	return func(v float64) (float64, bool) {
		x, known := a.of(v)
		y, also := b.of(v)
		return x, known && also && sameBits(x, y)
	}
}

// computed notes that values are computed, and what a number becomes. A step that computes has no constants that another step
// could keep.
func (c *Change) computed(value scalarFunction) {
	c.Computes, c.Arithmetic, c.Inserts, c.value = true, true, nil, value
}

// inserted notes that a step inserts a constant; false: that is not certain. What becomes of other numbers is no longer
// certain, because the constant is not among them.
func (c *Change) inserted(constant float64, certain bool) {
	if c.value = nil; !certain || c.Computes {
		c.computed(nil)
		return
	}
	c.Inserts = append(slices.Clone(c.Inserts), constant)
}

// InsertionsDiffer returns why two steps may not pass each other, because one inserts a constant that the other does not keep;
// empty if they may.
func (c Change) InsertionsDiffer(other Change) string {
	for _, pair := range [][2]Change{{c, other}, {other, c}} {
		for _, constant := range pair[0].Inserts {
			if pair[1].Computes && !pair[1].keeps(constant) {
				return "one inserts a constant, and the other may change that constant"
			}
			if slices.ContainsFunc(pair[1].Inserts, func(v float64) bool { return !sameBits(v, constant) }) {
				return "both insert constants, and these differ"
			}
		}
	}
	return ""
}

// inType returns a number as a type has it. TensorFlow may flush subnormal floats to 0.
func inType(v float64, of tf.DataType) (float64, bool) {
	switch {
	case math.IsNaN(v) || math.IsInf(v, 0):
		return 0, false
	case of == tf.DataType_DT_FLOAT:
		single := float64(float32(v))
		return single, !math.IsInf(single, 0) && (v == 0 || math.Abs(single) >= 0x1p-126)
	case of == tf.DataType_DT_DOUBLE:
		return v, v == 0 || math.Abs(v) >= 0x1p-1022
	}
	low, high, is := integerRange(of)
	// The sum removes the sign of 0.
	return v + 0, is && v == math.Trunc(v) && low <= v && v <= high
}

// integerRange returns the numbers of an integer type that a float64 represents.
func integerRange(of tf.DataType) (low, high float64, is bool) {
	switch of {
	case tf.DataType_DT_UINT8:
		return 0, math.MaxUint8, true
	case tf.DataType_DT_INT8:
		return math.MinInt8, math.MaxInt8, true
	case tf.DataType_DT_UINT16:
		return 0, math.MaxUint16, true
	case tf.DataType_DT_INT16:
		return math.MinInt16, math.MaxInt16, true
	case tf.DataType_DT_UINT32:
		return 0, math.MaxUint32, true
	case tf.DataType_DT_INT32:
		return math.MinInt32, math.MaxInt32, true
	case tf.DataType_DT_UINT64:
		return 0, 1 << 53, true
	case tf.DataType_DT_INT64:
		return -1 << 53, 1 << 53, true
	}
	return 0, 0, false
}

// unary evaluates an op with one argument. A float64 has more than twice the bits of a float32, so rounding the result of
// a float64 gives the result of the op.
func (f scalarFunction) unary(n *tf.NodeDef) scalarFunction {
	return func(v float64) (float64, bool) {
		v, certain := f.of(v)
		from, to := n.GetAttr()["T"].GetType(), n.GetAttr()["T"].GetType()
		switch n.GetOp() {
		case "Cast":
			from, to = n.GetAttr()["SrcT"].GetType(), n.GetAttr()["DstT"].GetType()
		case "Abs":
			v = math.Abs(v)
		case "Neg":
			v = -v
		case "Square":
			v *= v
		case "Sqrt":
			v = math.Sqrt(v)
		case "Floor":
			v = math.Floor(v)
		case "Ceil":
			v = math.Ceil(v)
		case "Rint", "Round":
			v = math.RoundToEven(v)
		case "Relu":
			certain = certain && !(v == 0 && math.Signbit(v))
			v = max(v, 0)
		default:
			return 0, false
		}
		if _, fits := inType(0, from); !certain || !fits {
			return 0, false
		}
		return inType(v, to)
	}
}

// binary evaluates an op with two arguments.
func binary(n *tf.NodeDef, a, b float64) (float64, bool) {
	of := n.GetAttr()["T"].GetType()
	var v float64
	switch n.GetOp() {
	case "Add", "AddV2":
		v = a + b
	case "Sub":
		v = a - b
	case "Mul":
		v = a * b
	case "RealDiv", "Div":
		if b == 0 || !floating(of) {
			return 0, false
		}
		v = a / b
	case "SquaredDifference":
		difference, certain := inType(a-b, of)
		if !certain {
			return 0, false
		}
		v = difference * difference
	case "Maximum", "Minimum":
		if a == b && !sameBits(a, b) {
			return 0, false
		}
		if v = max(a, b); n.GetOp() == "Minimum" {
			v = min(a, b)
		}
	default:
		return 0, false
	}
	return inType(v, of)
}

// with evaluates an op whose other argument has fixed numbers. All of them must give the same result. first says that the
// other argument comes first.
func (f scalarFunction) with(n *tf.NodeDef, fixed []float64, first bool) scalarFunction {
	return func(v float64) (result float64, certain bool) {
		v, certain = f.of(v)
		if !certain || len(fixed) == 0 {
			return 0, false
		}
		for i, other := range fixed {
			a, b := v, other
			if first {
				a, b = other, v
			}
			got, known := binary(n, a, b)
			if !known || i > 0 && !sameBits(got, result) {
				return 0, false
			}
			result = got
		}
		return result, true
	}
}

// both evaluates an op with two arguments that are computed from one number.
func both(n *tf.NodeDef, a, b scalarFunction) scalarFunction {
	return func(v float64) (float64, bool) {
		x, known := a.of(v)
		y, also := b.of(v)
		if !known || !also {
			return 0, false
		}
		return binary(n, x, y)
	}
}

// clipped evaluates a clip to fixed bounds.
func (f scalarFunction) clipped(of tf.DataType, low, high []float64) scalarFunction {
	return func(v float64) (float64, bool) {
		v, certain := f.of(v)
		outside := func(bound float64) bool { return bound == v && !sameBits(bound, v) }
		if !certain || len(low) == 0 || len(high) == 0 || v < slices.Max(low) || v > slices.Min(high) || slices.ContainsFunc(low, outside) || slices.ContainsFunc(high, outside) {
			return 0, false
		}
		return inType(v, of)
	}
}

// fixedNumbers returns the different numbers of a constant; nil if they are not known or too many.
func fixedNumbers(n *tf.NodeDef) (numbers []float64) {
	values, known := nodedef.Numbers(n)
	if !known {
		return nil
	}
	of := nodedef.Tensor(n).GetDtype()
	for _, v := range values {
		v, certain := inType(v, of)
		if !certain || len(numbers) > maxInts {
			return nil
		}
		if !slices.ContainsFunc(numbers, func(known float64) bool { return sameBits(known, v) }) {
			numbers = append(numbers, v)
		}
	}
	return numbers
}

// constant returns the number of an input that is one constant, as a type has it.
func (s *scope) constant(n *tf.NodeDef, input string, of tf.DataType) (float64, bool) {
	at := s.g.InputIndex(n, input)
	if at < 0 || at >= len(n.GetInput()) {
		return 0, false
	}
	fixed := s.input(n.GetInput()[at]).fixed
	if len(fixed) != 1 {
		return 0, false
	}
	return inType(fixed[0], of)
}
