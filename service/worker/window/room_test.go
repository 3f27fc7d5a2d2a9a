package window

import (
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

func TestTheLastFreeSpaceIsGrantedOnce(t *testing.T) {
	// Eight streams hold one element each and want to produce the next at the same moment. There is room for 13,
	// and for one that is under way.
	const size, room = 10, 13
	var all atomic.Int64
	limit := func() int64 { return (room + 1) * (size + entryOverhead) }
	streams := func() int64 { return 2 }
	var passed atomic.Int64
	var runs sync.WaitGroup
	windows := make([]*Window, 8)
	for i := range windows {
		windows[i] = New(&all, nil, Start{})
		windows[i].Append(NewEntry(0, 1, size, nil))
	}
	for _, w := range windows {
		runs.Go(func() {
			for w.WaitRoom(limit, streams, nil) {
				passed.Add(1)
				w.Append(NewEntry(w.next, 1, size, nil))
			}
		})
	}
	for end := time.Now().Add(time.Minute); passed.Load() != room-8; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the room is not taken")
		}
	}
	if held := all.Load(); held != room*(size+entryOverhead) {
		t.Errorf("%d bytes are held or put by, the limit is %d", held, limit())
	}
	for _, w := range windows {
		w.Close()
	}
	runs.Wait()
	// Other windows took what the first to close released, before they were closed themselves.
	if all.Load() != 0 {
		t.Errorf("%d bytes are left after the windows were closed", all.Load())
	}
}
