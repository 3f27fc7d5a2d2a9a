package pecanv1_test

import (
	"slices"
	"testing"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
)

func TestPackLoadsMakesAListForEachEpoch(t *testing.T) {
	load := func(epoch uint64, stream uint32, lease, acked uint64) *pecanv1.WorkerHeartbeat_StreamLoad {
		return &pecanv1.WorkerHeartbeat_StreamLoad{
			Id: &pecanv1.StreamId{JobId: "job", Epoch: epoch, Stream: stream}, Lease: lease, Produced: acked + 2, Acked: acked, CleanBelow: acked,
			Drained: stream%2 == 1, Unread: stream%3 == 1, Opened: stream > 0,
		}
	}
	loads := []*pecanv1.WorkerHeartbeat_StreamLoad{load(2, 7, 90, 5), load(1, 3, 1<<63, 0), load(2, 0, 4, 8), load(2, 1, 17, 1)}
	lists := pecanv1.PackLoads(loads)
	if len(lists) != 2 || lists[0].Epoch != 2 || lists[1].Epoch != 1 {
		t.Fatal(lists)
	}
	for _, list := range lists {
		if err := list.Check(); err != nil {
			t.Fatal(err)
		}
		streams, err := pecanv1.Numbers[uint32](list.Streams)
		if err != nil {
			t.Fatal(err)
		}
		leases, err := pecanv1.Numbers[uint64](list.Leases)
		if err != nil {
			t.Fatal(err)
		}
		want := slices.DeleteFunc(slices.Clone(loads), func(l *pecanv1.WorkerHeartbeat_StreamLoad) bool { return l.Id.Epoch != list.Epoch })
		for i, l := range want {
			got := []any{streams[i], leases[i], list.Produced[i], list.Acked[i], list.CleanBelow[i], list.Drained(i), list.Unread(i), list.Opened(i)}
			if wanted := []any{l.Id.Stream, l.Lease, l.Produced, l.Acked, l.CleanBelow, l.Drained, l.Unread, l.Opened}; !slices.Equal(got, wanted) {
				t.Errorf("stream %d: %v instead of %v", i, got, wanted)
			}
		}
	}
	lists[0].Flags = lists[0].Flags[1:]
	if lists[0].Check() == nil {
		t.Fatal("lists of different lengths pass")
	}
}
