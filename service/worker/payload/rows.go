package payload

import (
	"encoding/binary"

	"github.com/pecan-ml/pecan/native/tf"
)

// Rows is the size of the first dimension of an element's first component.
func Rows(element []*tf.Tensor) int64 {
	if len(element) == 0 || len(element[0].Dims()) == 0 {
		return 0
	}
	return element[0].Dims()[0]
}

// SkipRows returns batches without their first rows. It releases what it leaves out, and everything if it fails.
func SkipRows(batches [][]*tf.Tensor, skip int64) ([][]*tf.Tensor, error) {
	for skip > 0 && len(batches) > 0 {
		first := batches[0]
		rows := Rows(first)
		if rows <= skip {
			tf.ReleaseAll(first)
			batches, skip = batches[1:], skip-rows
			continue
		}
		rest, err := withoutRows(first, skip)
		if err != nil {
			for _, batch := range batches {
				tf.ReleaseAll(batch)
			}
			return nil, err
		}
		tf.ReleaseAll(first)
		batches[0], skip = rest, 0
	}
	return batches, nil
}

// withoutRows copies a batch without its first rows. All components of a batch have the same number of rows.
func withoutRows(batch []*tf.Tensor, skip int64) (rest []*tf.Tensor, err error) {
	for _, tensor := range batch {
		dims := append([]int64(nil), tensor.Dims()...)
		values := tensor.Elements() / dims[0]
		dims[0] -= skip
		var part *tf.Tensor
		if tensor.DType() == tf.String {
			wire := make([]byte, tensor.WireSize())
			tensor.PackStrings(wire)
			part, err = tf.NewStrings(dims, withoutStrings(wire, int(tensor.Elements()), int(skip*values)))
		} else {
			data := tensor.Data()
			part, err = tf.NewTensor(tensor.DType(), dims, data[int64(len(data))/tensor.Dims()[0]*skip:])
		}
		if err != nil {
			tf.ReleaseAll(rest)
			return nil, err
		}
		rest = append(rest, part)
	}
	return rest, nil
}

// withoutStrings returns the wire form of n strings, which is their lengths and then their bytes, without the first skip
// of them.
func withoutStrings(wire []byte, n, skip int) []byte {
	left := uint64(0)
	for _, length := range lengthsOf(wire[8*skip : 8*n]) {
		left += length
	}
	return append(append([]byte(nil), wire[8*skip:8*n]...), wire[uint64(len(wire))-left:]...)
}

func lengthsOf(wire []byte) []uint64 {
	lengths := make([]uint64, len(wire)/8)
	for i := range lengths {
		lengths[i] = binary.LittleEndian.Uint64(wire[8*i:])
	}
	return lengths
}
