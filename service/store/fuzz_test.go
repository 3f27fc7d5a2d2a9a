package store_test

import (
	"encoding/binary"
	"testing"

	"github.com/pecan-ml/pecan/service/store"
)

// FuzzLog scans arbitrary bytes as a log. The scan must end inside the file.
func FuzzLog(f *testing.F) {
	for _, part := range []int{0, 1, 19, 300, 40_000} {
		data := make([]byte, part)
		for i := 0; i+11 < len(data); i += 500 {
			binary.LittleEndian.PutUint16(data[i+4:], uint16(i))
			data[i+6], data[i+7] = byte(5+i%8), 3
		}
		f.Add(data, uint32(3))
	}
	f.Fuzz(func(t *testing.T, data []byte, number uint32) {
		end, _ := store.ScanLog(data, number)
		if end < 0 || end > len(data) {
			t.Fatalf("the last record ends at %d of %d bytes", end, len(data))
		}
	})
}
