package cache

import (
	"fmt"
	"sync"
	"testing"
	"time"
)

// Several streams write real segments at once. However fast the disk is, all of them together write no faster than the limit.
func TestWritersTogetherStayBelowTheLimit(t *testing.T) {
	const perSecond, streams = 16 << 20, 4
	d := open(t, t.TempDir(), 0)
	d.LimitWriting(perSecond)
	list := []Chunk{{Count: 1, Meta: []byte("m"), Payload: [][]byte{make([]byte, blockBytes)}}, {Count: 1, Meta: []byte("m"), Payload: [][]byte{make([]byte, blockBytes)}}}
	began := time.Now()
	sizes := make([]int64, streams)
	var writers sync.WaitGroup
	for i := range streams {
		writers.Go(func() {
			sizes[i] = write(t, d, fmt.Sprintf("c-0-abab-3-%d-1-0123456789abcdef.seg", i), testID, list, false).Bytes
		})
	}
	writers.Wait()
	took, bytes := time.Since(began), int64(0)
	for _, size := range sizes {
		bytes += size
	}
	if bytes < streams*2*blockBytes {
		t.Fatalf("%d bytes were written", bytes)
	}
	if most := perSecond * took.Seconds(); float64(bytes) > most {
		t.Errorf("%d bytes in %v, at most %.0f are allowed", bytes, took, most)
	}
	if d.WriteWaited() == 0 {
		t.Error("no wait is counted")
	}
}
