package durable

import (
	"math/rand/v2"
	"testing"

	"google.golang.org/protobuf/proto"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
)

func TestNextFindsTheFirstBit(t *testing.T) {
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, 0))
		streams := 1 + rng.Uint32N(400)
		b := newBitmap(streams)
		for range rng.IntN(6) {
			b.set(rng.Uint32N(streams), true)
		}
		for from := range streams + 9 {
			want := from
			for want < streams && !b.has(want) {
				want++
			}
			if got, any := b.next(from); any != (want < streams) || any && got != want {
				t.Fatalf("seed %d: after %d comes %d (%v), want %d of %d", seed, from, got, any, want, streams)
			}
		}
	}
}

// All streams of an epoch lose their worker, and some of them are truncated. The next one to lease is found without a look at
// the others.
func TestTheNextIdleStreamIsFoundAtOnce(t *testing.T) {
	s := NewState()
	const streams, truncated = 2000, 500
	at := func(stream uint32) *pecanv1.StreamId { return &pecanv1.StreamId{JobId: "j", Stream: stream} }
	apply := func(record *pecanv1.Record) {
		t.Helper()
		if err := s.Apply(proto.CloneOf(record)); err != nil {
			t.Fatal(err)
		}
	}
	apply(&pecanv1.Record{Kind: &pecanv1.Record_ClientJoined{ClientJoined: &pecanv1.ClientJoined{ClientId: "c"}}})
	apply(&pecanv1.Record{Kind: &pecanv1.Record_JobCreated{JobCreated: &pecanv1.JobCreated{JobId: "j", Options: &pecanv1.JobOptions{}, Plan: &pecanv1.Plan{NumStreams: streams}}}})
	apply(&pecanv1.Record{Kind: &pecanv1.Record_EpochOpened{EpochOpened: &pecanv1.EpochOpened{JobId: "j", Streams: streams}}})
	for stream := range uint32(streams) {
		apply(&pecanv1.Record{Kind: &pecanv1.Record_LeaseGranted{LeaseGranted: &pecanv1.LeaseGranted{Id: at(stream), Lease: uint64(stream) + 1, Worker: &pecanv1.WorkerAddress{WorkerId: "w"}}}})
	}
	for stream := range uint32(streams) {
		apply(&pecanv1.Record{Kind: &pecanv1.Record_LeaseLost{LeaseLost: &pecanv1.LeaseLost{Id: at(stream), Lease: uint64(stream) + 1, Truncated: stream < truncated}}})
	}
	looks := 0
	next, any := s.Job("j").Epochs[0].NextIdle(0, func(*pecanv1.StoredStream) bool {
		looks++
		return true
	})
	if next != truncated || !any || looks != 1 {
		t.Errorf("stream %d (%v) after %d looks, want %d after one", next, any, looks, truncated)
	}
}
