package trial

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"slices"

	"github.com/pecan-ml/pecan/native/tf"
	"github.com/pecan-ml/pecan/proto/frame"
	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
)

// differ compares elements of two orders, component by component.
type differ struct {
	tolerance  pecanv1.OrderTolerance
	components []difference
}

// difference is how a component differs, over all elements so far.
type difference struct {
	dtype         tf.DataType
	maxDifference float64
	low, high     float64
	// unequal is set if some bits differ. nonFinite is set if a value is not a number, or infinite, in one order, and
	// different in the other.
	unequal, nonFinite bool
}

// These are the bounds of docs/design/0010. Bounds that are not absolute are shares of a component's range.
const (
	integerBound = 1
	halfShare    = 0.02
	singleShare  = 0.001
)

// compare takes an element in both orders. It returns differences that no tolerance allows: another number of
// components, dtype or shape.
func (d *differ) compare(original, ordered []*tf.Tensor) (wrong string) {
	if len(original) != len(ordered) {
		return fmt.Sprintf("it has %d components, and %d in the new order", len(original), len(ordered))
	}
	if d.components == nil {
		d.components = make([]difference, len(original))
		for i, t := range original {
			d.components[i] = difference{dtype: t.DType(), low: math.Inf(1), high: math.Inf(-1)}
		}
	}
	if len(d.components) != len(original) {
		return fmt.Sprintf("it has %d components, other elements have %d", len(original), len(d.components))
	}
	for i, a := range original {
		b, c := ordered[i], &d.components[i]
		if a.DType() != b.DType() || a.DType() != c.dtype {
			return fmt.Sprintf("component %d is %s, and %s in the new order", i, frame.DTypeName(uint32(a.DType())), frame.DTypeName(uint32(b.DType())))
		}
		if !slices.Equal(a.Dims(), b.Dims()) {
			return fmt.Sprintf("component %d has shape %v, and %v in the new order", i, a.Dims(), b.Dims())
		}
		c.compare(a, b)
	}
	return ""
}

// compare compares two tensors of one dtype and one shape, value by value.
func (d *difference) compare(a, b *tf.Tensor) {
	if a.DType() == tf.String {
		if !equalStrings(a, b) {
			d.unequal, d.maxDifference = true, max(d.maxDifference, 1)
		}
		return
	}
	x, y := a.Data(), b.Data()
	d.unequal = d.unequal || !bytes.Equal(x, y)
	switch a.DType() {
	case tf.UInt8, dtBool:
		integers(d, x, y, 1, func(b []byte) uint64 { return uint64(b[0]) }, func(v uint64) float64 { return float64(v) })
	case dtInt8:
		integers(d, x, y, 1, func(b []byte) int64 { return int64(int8(b[0])) }, func(v int64) float64 { return float64(v) })
	case dtInt16:
		integers(d, x, y, 2, func(b []byte) int64 { return int64(int16(binary.NativeEndian.Uint16(b))) }, func(v int64) float64 { return float64(v) })
	case tf.Int32:
		integers(d, x, y, 4, func(b []byte) int64 { return int64(int32(binary.NativeEndian.Uint32(b))) }, func(v int64) float64 { return float64(v) })
	case tf.Int64:
		integers(d, x, y, 8, func(b []byte) int64 { return int64(binary.NativeEndian.Uint64(b)) }, func(v int64) float64 { return float64(v) })
	case dtUint16:
		integers(d, x, y, 2, func(b []byte) uint64 { return uint64(binary.NativeEndian.Uint16(b)) }, func(v uint64) float64 { return float64(v) })
	case dtUint32:
		integers(d, x, y, 4, func(b []byte) uint64 { return uint64(binary.NativeEndian.Uint32(b)) }, func(v uint64) float64 { return float64(v) })
	case dtUint64:
		integers(d, x, y, 8, binary.NativeEndian.Uint64, func(v uint64) float64 { return float64(v) })
	case tf.Float, dtComplex64:
		d.floats(x, y, 4, func(b []byte) float64 { return float64(math.Float32frombits(binary.NativeEndian.Uint32(b))) })
	case dtDouble, dtComplex128:
		d.floats(x, y, 8, func(b []byte) float64 { return math.Float64frombits(binary.NativeEndian.Uint64(b)) })
	case dtBfloat16:
		d.floats(x, y, 2, func(b []byte) float64 {
			return float64(math.Float32frombits(uint32(binary.NativeEndian.Uint16(b)) << 16))
		})
	case dtHalf:
		d.floats(x, y, 2, func(b []byte) float64 { return half(binary.NativeEndian.Uint16(b)) })
	default:
		if !bytes.Equal(x, y) {
			d.maxDifference = max(d.maxDifference, 1)
		}
	}
}

// These are numbers of tensorflow.DataType.
const (
	dtDouble     tf.DataType = 2
	dtInt16      tf.DataType = 5
	dtInt8       tf.DataType = 6
	dtComplex64  tf.DataType = 8
	dtBool       tf.DataType = 10
	dtBfloat16   tf.DataType = 14
	dtUint16     tf.DataType = 17
	dtComplex128 tf.DataType = 18
	dtHalf       tf.DataType = 19
	dtUint32     tf.DataType = 22
	dtUint64     tf.DataType = 23
)

// equalStrings compares string tensors of one shape.
func equalStrings(a, b *tf.Tensor) bool {
	return slices.EqualFunc(a.StringSegments(), b.StringSegments(), bytes.Equal)
}

// integers compares numbers whose differences a float might not represent.
func integers[T int64 | uint64](c *difference, x, y []byte, width int, read func([]byte) T, value func(T) float64) {
	for at := 0; at+width <= len(x); at += width {
		a, b := read(x[at:at+width]), read(y[at:at+width])
		c.low, c.high = min(c.low, value(a)), max(c.high, value(a))
		if a > b {
			c.maxDifference = max(c.maxDifference, float64(uint64(a)-uint64(b)))
		} else if a < b {
			c.maxDifference = max(c.maxDifference, float64(uint64(b)-uint64(a)))
		}
	}
}

func (d *difference) floats(x, y []byte, width int, read func([]byte) float64) {
	for at := 0; at+width <= len(x); at += width {
		a, b := read(x[at:at+width]), read(y[at:at+width])
		if finite(a) {
			d.low, d.high = min(d.low, a), max(d.high, a)
		}
		switch {
		case a == b || a != a && b != b:
		case finite(a) && finite(b):
			d.maxDifference = max(d.maxDifference, math.Abs(a-b))
		default:
			d.nonFinite, d.maxDifference = true, math.Inf(1)
		}
	}
}

func finite(v float64) bool { return !math.IsNaN(v) && !math.IsInf(v, 0) }

// half returns the value of a float16.
func half(bits uint16) float64 {
	exponent, fraction := int(bits>>10&31), float64(bits&1023)
	value := math.Ldexp(1024+fraction, exponent-25)
	switch exponent {
	case 0:
		value = math.Ldexp(fraction, -24)
	case 31:
		value = math.Inf(1)
		if fraction != 0 {
			value = math.NaN()
		}
	}
	if bits>>15 != 0 {
		return -value
	}
	return value
}

// span is the component's largest value minus its smallest one.
func (d *difference) span() float64 {
	if d.high < d.low {
		return 0
	}
	return d.high - d.low
}

// bound is how far values may differ, as a number and in words.
func (d *difference) bound(tolerance pecanv1.OrderTolerance) (bound float64, words string) {
	switch {
	case tolerance == pecanv1.OrderTolerance_ORDER_TOLERANCE_ANY:
		return -1, ""
	case tolerance == pecanv1.OrderTolerance_ORDER_TOLERANCE_EXACT:
		return 0, "nothing"
	}
	switch d.dtype {
	case tf.Float, dtDouble, dtComplex64, dtComplex128:
		return singleShare * d.span(), fmt.Sprintf("%g %% of its range of %g", 100*singleShare, d.span())
	case dtBfloat16, dtHalf:
		return halfShare * d.span(), fmt.Sprintf("%g %% of its range of %g", 100*halfShare, d.span())
	case tf.UInt8, dtInt8, dtInt16, dtUint16, tf.Int32, dtUint32, tf.Int64, dtUint64:
		return integerBound, "1"
	}
	return 0, "nothing"
}

// verdict returns what differs more than allowed; empty if nothing does.
func (d *differ) verdict() string {
	for i := range d.components {
		c := &d.components[i]
		bound, words := c.bound(d.tolerance)
		switch exact := d.tolerance == pecanv1.OrderTolerance_ORDER_TOLERANCE_EXACT; {
		case bound < 0:
		case c.dtype == tf.String && c.unequal:
			return fmt.Sprintf("component %d has different strings in the new order", i)
		case c.nonFinite:
			return fmt.Sprintf("component %d has NaN or infinite values in one order only", i)
		case c.maxDifference > bound:
			return fmt.Sprintf("component %d (%s) differs by up to %g, where %s is allowed", i, frame.DTypeName(uint32(c.dtype)), c.maxDifference, words)
		case exact && c.unequal:
			return fmt.Sprintf("component %d (%s) has different bits in the new order", i, frame.DTypeName(uint32(c.dtype)))
		}
	}
	return ""
}

// report returns the differences of all components.
func (d *differ) report() (out []*pecanv1.OrderDifference) {
	for i := range d.components {
		c := &d.components[i]
		bound, _ := c.bound(d.tolerance)
		out = append(out, &pecanv1.OrderDifference{Component: uint32(i), MaxDifference: c.maxDifference, Bound: bound, Range: c.span()})
	}
	return out
}

// toleranceOf is the tolerance that a job's options mean.
func toleranceOf(options *pecanv1.JobOptions) pecanv1.OrderTolerance {
	switch {
	case options.GetOrder().Published():
		return pecanv1.OrderTolerance_ORDER_TOLERANCE_ANY
	case options.GetOrderTolerance() == pecanv1.OrderTolerance_ORDER_TOLERANCE_UNSPECIFIED:
		return pecanv1.OrderTolerance_ORDER_TOLERANCE_APPROXIMATE
	}
	return options.GetOrderTolerance()
}

const (
	// minElements elements in fewOpenings are enough to judge a gain. If there are no more, fewElements are
	// enough for a gain of largeGain.
	minElements = 30
	fewOpenings = 4
	fewElements = 6
	largeGain   = 0.2
)

// gain is what another order saves, measured by the CPU of elements in both orders.
//
// Two iterators of the same order also differ for as long as they live. Their memory lies at different addresses, and the
// allocator treats it differently. Many elements of one opening therefore say little. The interval is computed from the
// means of several openings.
type gain struct {
	n                 int
	original, ordered float64
	// openingMeans are the mean savings of each opening.
	openingMeans []float64
	// now is the current opening.
	now spreadOf
}

// spreadOf is a mean and a variance, by Welford's method. The squares of large values do not hide small
// differences.
type spreadOf struct {
	n             int
	mean, squares float64
}

func (s *spreadOf) add(v float64) {
	s.n++
	before := v - s.mean
	s.mean += before / float64(s.n)
	s.squares += before * (v - s.mean)
}

// half is half of the interval that contains the mean with 95 % confidence, by Student's t.
func (s *spreadOf) half() float64 {
	if s.n < 2 {
		return math.Inf(1)
	}
	n := float64(s.n)
	return student(s.n-1) * math.Sqrt(s.squares/(n-1)/n)
}

// add adds the CPU of one element in both orders, in seconds.
func (g *gain) add(original, ordered float64) {
	g.n++
	g.original += original
	g.ordered += ordered
	g.now.add(original - ordered)
}

// next ends an opening.
func (g *gain) next() {
	if g.now.n > 0 {
		g.openingMeans = append(g.openingMeans, g.now.mean)
	}
	g.now = spreadOf{}
}

// each is the CPU of an element in each order.
func (g *gain) each() (original, ordered float64) {
	n := float64(max(1, g.n))
	return g.original / n, g.ordered / n
}

// sameOrder is the share of an element's CPU below which a difference never counts as a gain.
const sameOrder = 0.02

// interval contains the saving of an element with 95 % confidence.
func (g *gain) interval() (low, high float64) {
	var all spreadOf
	for _, saved := range g.openingMeans {
		all.add(saved)
	}
	original, _ := g.each()
	half := all.half() + sameOrder*original
	return all.mean - half, all.mean + half
}

// few reports whether the measurements are too few for a result.
func (g *gain) few() bool { return g.n < minElements || len(g.openingMeans) < fewOpenings }

// certain reports whether a large gain is certain, so that further openings would not change the result.
func (g *gain) certain() bool {
	original, _ := g.each()
	low, _ := g.interval()
	return !g.few() && low >= largeGain*original
}

// doubt returns why an order is not certainly faster; empty if it is.
func (g *gain) doubt() string {
	original, ordered := g.each()
	low, high := g.interval()
	switch {
	case g.few() && (g.n < fewElements || len(g.openingMeans) < fewOpenings || low < largeGain*original):
		return fmt.Sprintf("not faster with confidence: only %d elements in %d openings of the dataset were measured, and %d in %d are needed",
			g.n, len(g.openingMeans), minElements, fewOpenings)
	case low <= 0:
		return fmt.Sprintf("not faster with confidence: an element takes %.3g ms in the registered order and %.3g ms in the new one (%.3g to %.3g ms less with 95 %% confidence)",
			1e3*original, 1e3*ordered, 1e3*low, 1e3*high)
	}
	return ""
}

// open reports whether a doubtful order is more likely faster than not, so that more elements could decide.
func (g *gain) open() bool {
	low, high := g.interval()
	return g.few() || low+high > 0
}

// settled reports whether the next opening would add more information than more elements of this one.
func (g *gain) settled() bool {
	original, _ := g.each()
	return g.now.half() <= max(math.Abs(g.now.mean)/20, original/100)
}

// smallStudent are the quantiles for few degrees of freedom, from 1 on.
var smallStudent = []float64{12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228}

// student is the quantile of Student's t below which 97.5 % lie.
func student(freedom int) float64 {
	if freedom <= len(smallStudent) {
		return smallStudent[max(freedom, 1)-1]
	}
	// This is Cornish and Fisher's expansion, correct to four digits here.
	const z = 1.959964
	f := float64(freedom)
	return z + (z*z*z+z)/(4*f) + (5*math.Pow(z, 5)+16*z*z*z+3*z)/(96*f*f) + (3*math.Pow(z, 7)+19*math.Pow(z, 5)+17*z*z*z-15*z)/(384*f*f*f)
}
