package epoch

import (
	"testing"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
)

func TestDifferencesChangeOnlyTheListedStreams(t *testing.T) {
	e := testEpoch(&pecanv1.Plan{NumStreams: 8, Group: 4})
	one := func(stream uint32, lease uint64, worker uint32) *pecanv1.ConsumerStream {
		return &pecanv1.ConsumerStream{Stream: stream, Lease: lease, Assignment: 1, WorkerNumber: worker}
	}
	workers := []*pecanv1.WorkerAddress{{WorkerId: "a"}, {WorkerId: "b"}, {WorkerId: "c"}}
	e.apply(&pecanv1.EpochUpdate{Version: 1, Full: true, More: true, Workers: workers[:1], Streams: []*pecanv1.ConsumerStream{one(0, 1, 1)}}, true)
	if e.final {
		t.Error("a part that is not the last counts as whole")
	}
	e.apply(&pecanv1.EpochUpdate{Version: 2, Workers: workers[1:2], Streams: []*pecanv1.ConsumerStream{one(1, 2, 2), one(2, 3, 1)}, TotalStreams: 8, StreamsFinal: true, Delivered: 2}, false)
	e.apply(&pecanv1.EpochUpdate{Version: 3, Workers: workers[2:], Streams: []*pecanv1.ConsumerStream{one(1, 4, 3)}, Revoked: []uint32{2}, TotalStreams: 8, StreamsFinal: true, Delivered: 3}, false)
	for stream, want := range map[uint32]string{0: "a", 1: "c"} {
		if st := e.streams.find(stream); st == nil || st.worker.GetWorkerId() != want || !st.reading() {
			t.Errorf("stream %d: %+v", stream, st)
		}
	}
	if e.streams.find(2) != nil || !e.streams.isPast(2) || e.streams.reading != 2 || !e.final || e.stale {
		t.Errorf("%d streams are read, stale: %v", e.streams.reading, e.stale)
	}

	// The watch begins again, and stream 0 went to another client meanwhile.
	e.apply(&pecanv1.EpochUpdate{Version: 1, Full: true, Workers: workers[:1], Streams: []*pecanv1.ConsumerStream{one(1, 5, 1)}, TotalStreams: 8, StreamsFinal: true, Delivered: 3}, true)
	if e.streams.find(0) != nil || e.streams.find(1).worker.GetWorkerId() != "a" || e.streams.reading != 1 {
		t.Error("a full update does not replace what was known")
	}

	// A stream comes back with a new assignment.
	back := one(2, 3, 1)
	back.Assignment, back.StartIndex = 2, 7
	e.apply(&pecanv1.EpochUpdate{Version: 2, Streams: []*pecanv1.ConsumerStream{back}, TotalStreams: 8, StreamsFinal: true, Delivered: 3}, false)
	if st := e.streams.find(2); st == nil || !st.reading() || st.next != 7 || st.lease != 3 {
		t.Errorf("a stream that came back: %+v", st)
	}
}

func TestADispatcherThatForgotRecordsIsNoticed(t *testing.T) {
	one := func(lease uint64) []*pecanv1.ConsumerStream {
		return []*pecanv1.ConsumerStream{{Stream: 1, Lease: lease, Assignment: 1}}
	}
	for name, after := range map[string]*pecanv1.EpochUpdate{
		"an older lease":               {Full: true, Streams: one(3), Delivered: 5},
		"an older lease of an end":     {Full: true, Streams: []*pecanv1.ConsumerStream{{Stream: 2, Lease: 1, Assignment: 1}}, Delivered: 5},
		"fewer delivered streams":      {Full: true, Streams: one(4), Delivered: 4},
		"fewer, and nothing is listed": {Full: true, Delivered: 4},
	} {
		t.Run(name, func(t *testing.T) {
			e := testEpoch(&pecanv1.Plan{NumStreams: 8, Group: 4})
			e.apply(&pecanv1.EpochUpdate{Version: 9, Full: true, Streams: append(one(4), &pecanv1.ConsumerStream{Stream: 2, Lease: 2, Assignment: 1}), Delivered: 5}, true)
			st := e.streams.find(2)
			st.end()
			e.settle(st)
			e.apply(after, true)
			for heartbeat := 1; heartbeat <= staleHeartbeats; heartbeat++ {
				if back := e.WentBack(); back != (heartbeat == staleHeartbeats) {
					t.Errorf("heartbeat %d: %v", heartbeat, back)
				}
			}
		})
	}
	t.Run("a late message", func(t *testing.T) {
		e := testEpoch(&pecanv1.Plan{NumStreams: 8, Group: 4})
		e.apply(&pecanv1.EpochUpdate{Version: 1, Full: true, Streams: one(4)}, true)
		e.apply(&pecanv1.EpochUpdate{Version: 2, Streams: one(3)}, false)
		if !e.stale {
			t.Error("an older lease is not noticed")
		}
		if e.apply(&pecanv1.EpochUpdate{Version: 3, Streams: one(4)}, false); e.stale {
			t.Error("the newest lease does not end it")
		}
	})
}

func TestNoMoreStreamsBeginThanAPositionCanList(t *testing.T) {
	e := testEpoch(&pecanv1.Plan{NumStreams: 3 * maxBegun, Group: 16})
	e.options.MaxOutstandingBytes = 1 << 40
	begin := func(number uint32) {
		e.apply(&pecanv1.EpochUpdate{Version: uint64(number) + 1, Full: number == 0, Workers: []*pecanv1.WorkerAddress{{WorkerId: "w"}},
			Streams: []*pecanv1.ConsumerStream{{Stream: number, Lease: 1, Assignment: 1, WorkerNumber: 1}}}, number == 0)
	}
	number := uint32(0)
	for ; number < maxBegun; number++ {
		begin(number)
		st := e.streams.find(number)
		if open, _ := e.mayOpen(st); !open {
			t.Fatalf("stream %d may not begin", number)
		}
		// One element of each has arrived.
		st.next++
		e.settle(st)
	}
	begin(number)
	if open, _ := e.mayOpen(e.streams.find(number)); open {
		t.Errorf("stream %d may begin", number)
	}
	if open, _ := e.mayOpen(e.streams.find(7)); !open {
		t.Error("a stream that has begun may not be requested again")
	}
	e.options.Deterministic = true
	if open, steady := e.mayOpen(e.streams.find(0)); !open || !steady {
		t.Error("the stream in turn may not be requested")
	}
	e.options.Deterministic = false
	st := e.streams.find(3)
	st.end()
	e.settle(st)
	if open, _ := e.mayOpen(e.streams.find(number)); !open {
		t.Error("the end of a stream lets no other one begin")
	}
}
