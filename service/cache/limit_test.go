package cache

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
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

// A stream that ends waits no longer for the limit, and later writers do not pay for what it has not written.
func TestTheEndOfAStreamEndsItsWaitForTheLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const perSecond, wait = 1 << 20, time.Second
		l := &limit{perSecond: perSecond}
		ctx, cancel := context.WithTimeout(t.Context(), wait)
		defer cancel()
		began := time.Now()
		if err := l.wait(ctx, 3600*perSecond); !errors.Is(err, context.DeadlineExceeded) || time.Since(began) != wait {
			t.Errorf("waited %v: %v", time.Since(began), err)
		}
		if l.waited != wait {
			t.Errorf("a wait of %v is counted", l.waited)
		}
		began = time.Now()
		if err := l.wait(t.Context(), perSecond); err != nil || time.Since(began) > time.Second {
			t.Errorf("the next writer waited %v: %v", time.Since(began), err)
		}
	})
	// The segment of a stream that ends fails with the reason.
	d := open(t, t.TempDir(), 0)
	d.LimitWriting(1)
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(10*time.Millisecond, cancel)
	if w, err := d.Create(ctx, testName, testID, testDTypes, Uncompressed); !errors.Is(err, context.Canceled) {
		t.Errorf("%v, %v", w, err)
	}
	if names, err := d.List(ClusterOf(testName)); len(names) != 0 || err != nil {
		t.Errorf("left behind: %v, %v", names, err)
	}
}
