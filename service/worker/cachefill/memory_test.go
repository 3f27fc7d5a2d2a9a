package cachefill

import (
	"bytes"
	"testing"
	"unsafe"

	"github.com/pecan-ml/pecan/native/tf"
	"github.com/pecan-ml/pecan/proto/frame"
	"github.com/pecan-ml/pecan/service/cache"
)

// A large element shares the block that was read, and keeps it from later reads. Small elements are copied, so that one of them
// keeps no block.
func TestOnlyLargeElementsKeepTheirBlock(t *testing.T) {
	d, _ := directory(t)
	for size, shares := range map[int]bool{100: false, 300 << 10: false, 1 << 20: true, 3 << 20: true} {
		const elements = 4
		writer, err := d.dir.Create(t.Context(), cache.Name("c", "k", 0, 1, d.begun.Add(1), "w"), cache.ID{Key: "k"}, nil, cache.Uncompressed)
		if err != nil {
			t.Fatal(err)
		}
		like := func(i int) []byte { return bytes.Repeat([]byte{byte(i + 1)}, size) }
		for i := range elements {
			tensor, err := tf.NewTensor(tf.UInt8, []int64{int64(size)}, like(i))
			if err != nil {
				t.Fatal(err)
			}
			err = writer.Append(&asElement([]*tf.Tensor{tensor}).chunk)
			tensor.Release()
			if err != nil {
				t.Fatal(err)
			}
		}
		segment, err := writer.Commit()
		if err != nil {
			t.Fatal(err)
		}
		reader, err := d.dir.Open(segment, d.alloc)
		if err != nil {
			t.Fatal(err)
		}
		var all []*tf.Tensor
		for range elements {
			chunk, err := reader.Next()
			if err != nil {
				t.Fatal(err)
			}
			tensors, err := tensorsOf(&chunk, reader.Block(), new(frame.Table))
			if err != nil {
				t.Fatal(err)
			}
			if got := unsafe.SliceData(tensors[0].Data()) == unsafe.SliceData(chunk.Payload[0]); got != shares {
				t.Errorf("an element of %d bytes shares its block: %v", size, got)
			}
			all = append(all, tensors...)
		}
		if err := reader.Close(); err != nil {
			t.Fatal(err)
		}
		for i, tensor := range all {
			if !bytes.Equal(tensor.Data(), like(i)) {
				t.Errorf("element %d of %d bytes has changed", i, size)
			}
		}
		tf.ReleaseAll(all)
	}
}
