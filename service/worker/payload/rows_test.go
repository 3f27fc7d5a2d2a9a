package payload

import (
	"encoding/binary"
	"fmt"
	"testing"

	"github.com/pecan-ml/pecan/native/tf"
)

// batchOf makes a batch of rows from first to below: a matrix of two columns, and a string of that many bytes.
func batchOf(t *testing.T, first, below int) []*tf.Tensor {
	var numbers, lengths, text []byte
	for row := first; row < below; row++ {
		numbers = append(numbers, byte(row), byte(2*row))
		lengths = binary.LittleEndian.AppendUint64(lengths, uint64(row))
		for range row {
			text = append(text, byte('a'+row))
		}
	}
	matrix, err := tf.NewTensor(tf.DataType(4), []int64{int64(below - first), 2}, numbers)
	if err != nil {
		t.Fatal(err)
	}
	strings, err := tf.NewStrings([]int64{int64(below - first)}, append(lengths, text...))
	if err != nil {
		t.Fatal(err)
	}
	return []*tf.Tensor{matrix, strings}
}

func show(batches [][]*tf.Tensor) (text string) {
	for _, batch := range batches {
		wire := make([]byte, batch[1].WireSize())
		batch[1].PackStrings(wire)
		text += fmt.Sprint(batch[0].Dims(), batch[0].Data(), batch[1].Dims(), wire, ";")
	}
	return text
}

func TestSkipRowsLeavesTheLaterRows(t *testing.T) {
	for skip := range 8 {
		batches := [][]*tf.Tensor{batchOf(t, 0, 3), batchOf(t, 3, 4), batchOf(t, 4, 7)}
		var want [][]*tf.Tensor
		for _, bounds := range [][2]int{{0, 3}, {3, 4}, {4, 7}} {
			if first := max(bounds[0], skip); first < bounds[1] {
				want = append(want, batchOf(t, first, bounds[1]))
			}
		}
		got, err := SkipRows(batches, int64(skip))
		if err != nil {
			t.Fatal(err)
		}
		if show(got) != show(want) {
			t.Errorf("without %d rows: %s, want %s", skip, show(got), show(want))
		}
		for _, batch := range append(got, want...) {
			tf.ReleaseAll(batch)
		}
	}
}
