package trial

import (
	"encoding/binary"
	"math"
	"strings"
	"testing"

	"github.com/pecan-ml/pecan/native/tf"
	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
)

func tensorOf(t *testing.T, dtype tf.DataType, data []byte, dims ...int64) *tf.Tensor {
	t.Helper()
	tensor, err := tf.NewTensor(dtype, dims, data)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(tensor.Release)
	return tensor
}

func stringsOf(t *testing.T, all ...string) *tf.Tensor {
	t.Helper()
	var lengths, bytes []byte
	for _, s := range all {
		lengths, bytes = binary.LittleEndian.AppendUint64(lengths, uint64(len(s))), append(bytes, s...)
	}
	tensor, err := tf.NewStrings([]int64{int64(len(all))}, append(lengths, bytes...))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(tensor.Release)
	return tensor
}

func floats(values ...float64) (data []byte) {
	for _, v := range values {
		data = binary.NativeEndian.AppendUint32(data, math.Float32bits(float32(v)))
	}
	return data
}

func doubles(values ...float64) (data []byte) {
	for _, v := range values {
		data = binary.NativeEndian.AppendUint64(data, math.Float64bits(v))
	}
	return data
}

func words16(values ...uint16) (data []byte) {
	for _, v := range values {
		data = binary.NativeEndian.AppendUint16(data, v)
	}
	return data
}

func words64(values ...uint64) (data []byte) {
	for _, v := range values {
		data = binary.NativeEndian.AppendUint64(data, v)
	}
	return data
}

func TestComponentsDifferByNoMoreThanTheirDtypeAllows(t *testing.T) {
	nan, inf := math.NaN(), math.Inf(1)
	otherNaN := binary.NativeEndian.AppendUint32(nil, 0x7fc00001)
	for what, c := range map[string]struct {
		dtype       tf.DataType
		a, b        []byte
		exact, near bool
		worst       float64
	}{
		"equal":                   {tf.Float, floats(1, 2), floats(1, 2), true, true, 0},
		"a thousandth of a range": {tf.Float, floats(0, 100), floats(0.09, 100), false, true, 0.09},
		"more":                    {tf.Float, floats(0, 100), floats(0.2, 100), false, false, 0.2},
		"a range of nothing":      {tf.Float, floats(5, 5), floats(5, 5.001), false, false, 0.001},
		"no number":               {tf.Float, floats(nan, 1), floats(nan, 1), true, true, 0},
		"no number of other bits": {tf.Float, floats(nan), otherNaN, false, true, 0},
		"no number here only":     {tf.Float, floats(1, 2), floats(nan, 2), false, false, inf},
		"no number there only":    {tf.Float, floats(nan, 2), floats(1, 2), false, false, inf},
		"infinite":                {tf.Float, floats(inf, 1), floats(inf, 1), true, true, 0},
		"infinite otherwise":      {tf.Float, floats(inf, 1), floats(-inf, 1), false, false, inf},
		"zeros of two signs":      {tf.Float, floats(0, 1), floats(math.Copysign(0, -1), 1), false, true, 0},
		"doubles":                 {dtDouble, doubles(0, 100), doubles(0.09, 100), false, true, 0.09},
		"doubles apart":           {dtDouble, doubles(0, 100), doubles(0.11, 100), false, false, 0.11},
		// 1 and 3 as float16: 0x3c00, 0x4200; 1.03125 is 0x3c20 and 1.0625 0x3c40.
		"halves":       {dtHalf, words16(0x3c00, 0x4200), words16(0x3c20, 0x4200), false, true, 0.03125},
		"halves apart": {dtHalf, words16(0x3c00, 0x4200), words16(0x3c40, 0x4200), false, false, 0.0625},
		// 1 and 3 as bfloat16: 0x3f80, 0x4040; 1.0078125 is 0x3f81, 1.0625 0x3f88.
		"brain floats":       {dtBfloat16, words16(0x3f80, 0x4040), words16(0x3f81, 0x4040), false, true, 0.0078125},
		"brain floats apart": {dtBfloat16, words16(0x3f80, 0x4040), words16(0x3f88, 0x4040), false, false, 0.0625},
		"bytes":              {tf.UInt8, []byte{0, 255}, []byte{1, 254}, false, true, 1},
		"bytes apart":        {tf.UInt8, []byte{0, 255}, []byte{255, 255}, false, false, 255},
		"signed bytes":       {dtInt8, []byte{0xff}, []byte{1}, false, false, 2},
		"truths":             {dtBool, []byte{0}, []byte{1}, false, false, 1},
		"large numbers":      {tf.Int64, words64(1 << 62), words64(1<<62 + 1), false, true, 1},
		"large ones apart":   {tf.Int64, words64(1 << 62), words64(1<<62 + 2), false, false, 2},
		"from end to end":    {tf.Int64, words64(1 << 63), words64(1<<63 - 1), false, false, math.MaxUint64},
		"without a sign":     {dtUint64, words64(math.MaxUint64), words64(0), false, false, math.MaxUint64},
		"complex":            {dtComplex64, floats(0, 100), floats(0.09, 100), false, true, 0.09},
		"of a rare dtype":    {25, []byte{1}, []byte{2}, false, false, 1},
	} {
		for tolerance, good := range map[pecanv1.OrderTolerance]bool{exact: c.exact, approximate: c.near, anything: true} {
			d := differ{tolerance: tolerance}
			width := int64(len(c.a))
			switch c.dtype {
			case tf.Float:
				width /= 4
			case dtDouble, tf.Int64, dtUint64, dtComplex64:
				width /= 8
			case dtHalf, dtBfloat16:
				width /= 2
			}
			a, b := tensorOf(t, c.dtype, c.a, width), tensorOf(t, c.dtype, c.b, width)
			if wrong := d.compare([]*tf.Tensor{a}, []*tf.Tensor{b}); wrong != "" {
				t.Fatal(what, wrong)
			}
			worst := d.report()[0].GetMaxDifference()
			if why := d.verdict(); (why == "") != good || math.Abs(worst-c.worst) > 1e-4*c.worst {
				t.Errorf("%s, %v: %q, worst is %g, want %g", what, tolerance, why, worst, c.worst)
			}
		}
	}
}

func TestStringsShapesAndDtypesAreTheSame(t *testing.T) {
	one, other := stringsOf(t, "a", "bc"), stringsOf(t, "ab", "c")
	for tolerance, good := range map[pecanv1.OrderTolerance]bool{exact: false, approximate: false, anything: true} {
		d := differ{tolerance: tolerance}
		if wrong := d.compare([]*tf.Tensor{one}, []*tf.Tensor{one}); wrong != "" || d.verdict() != "" {
			t.Error(tolerance, wrong, d.verdict())
		}
		if wrong := d.compare([]*tf.Tensor{one}, []*tf.Tensor{other}); wrong != "" || (d.verdict() == "") != good {
			t.Error(tolerance, wrong, d.verdict())
		}
	}
	numbers := func(dims ...int64) *tf.Tensor { return tensorOf(t, tf.UInt8, make([]byte, 6), dims...) }
	signed := tensorOf(t, dtInt8, make([]byte, 6), 6)
	for what, pair := range map[string][2][]*tf.Tensor{
		"components, and 2 in the new order": {{one}, {one, one}},
		"and [3 2] in the new order":         {{numbers(2, 3)}, {numbers(3, 2)}},
		"and int8 in the new order":          {{numbers(6)}, {signed}},
		"other elements have 1":              {{one, one}, {one, one}},
	} {
		d := differ{tolerance: anything}
		if what == "other elements have 1" {
			d.compare([]*tf.Tensor{one}, []*tf.Tensor{one})
		}
		if wrong := d.compare(pair[0], pair[1]); !strings.Contains(wrong, what) {
			t.Errorf("%q, want %q", wrong, what)
		}
	}
}
