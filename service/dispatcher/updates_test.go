package dispatcher

import (
	"math/rand/v2"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
)

// reader applies differences as a client does.
type reader struct {
	streams map[uint32]*pecanv1.ConsumerStream
	workers []*pecanv1.WorkerAddress
	version uint64
	waiting string
}

func (r *reader) apply(t *testing.T, update *pecanv1.EpochUpdate) {
	if update.Version <= r.version {
		t.Fatalf("version %d after %d", update.Version, r.version)
	}
	r.version = update.Version
	r.workers = append(r.workers, update.Workers...)
	for _, number := range update.Revoked {
		delete(r.streams, number)
	}
	for _, stream := range update.Streams {
		if int(stream.WorkerNumber) > len(r.workers) {
			t.Fatalf("stream %d is on worker %d of %d", stream.Stream, stream.WorkerNumber, len(r.workers))
		}
		r.streams[stream.Stream] = stream
	}
	if !update.More {
		r.waiting = update.Waiting
	}
}

func TestMergedDifferencesSayTheSame(t *testing.T) {
	for seed := range uint64(50) {
		rng := rand.New(rand.NewPCG(seed, 0))
		single, merged := &reader{streams: map[uint32]*pecanv1.ConsumerStream{}}, &reader{streams: map[uint32]*pecanv1.ConsumerStream{}}
		var updates []*pecanv1.EpochUpdate
		workers := uint32(0)
		for version := range uint64(2 + rng.IntN(8)) {
			update := &pecanv1.EpochUpdate{Version: version + 1, Full: version == 0, Waiting: string(rune('a' + version))}
			for range rng.IntN(3) {
				workers++
				update.Workers = append(update.Workers, &pecanv1.WorkerAddress{})
			}
			revoked := map[uint32]bool{}
			for range rng.IntN(3) {
				number := rng.Uint32N(6)
				revoked[number] = true
				update.Revoked = append(update.Revoked, number)
			}
			for number := range uint32(6) {
				if !revoked[number] && rng.IntN(2) == 0 {
					update.Streams = append(update.Streams, &pecanv1.ConsumerStream{Stream: number, Lease: version, WorkerNumber: rng.Uint32N(workers + 1)})
				}
			}
			single.apply(t, update)
			updates = append(updates, update)
		}
		parts := mergeUpdates(updates)
		for i, part := range parts {
			if part.Full != (i == 0) || part.More != (i < len(parts)-1) {
				t.Fatalf("seed %d: part %d is %v", seed, i, part)
			}
			merged.apply(t, part)
		}
		if len(merged.streams) != len(single.streams) || merged.waiting != single.waiting || len(merged.workers) != len(single.workers) {
			t.Fatalf("seed %d: %v instead of %v", seed, merged, single)
		}
		for number, stream := range single.streams {
			if !proto.Equal(stream, merged.streams[number]) {
				t.Fatalf("seed %d: stream %d is %v instead of %v", seed, number, merged.streams[number], stream)
			}
		}
	}
}

// A client that reads few streams learns of the next ones soon, however many streams the epoch has.
func TestUpdatesWaitLongerIfTheClientReadsManyStreams(t *testing.T) {
	q := newUpdateQueue()
	for open, want := range map[int]time.Duration{0: minUpdatePause, fewStreams: minUpdatePause, fewStreams + 20: 20 * pausePerStream, 8000: maxUpdatePause} {
		if q.push(&pecanv1.EpochUpdate{TotalStreams: 65536}, open); q.pause() != want {
			t.Errorf("%d open streams: %v, want %v", open, q.pause(), want)
		}
	}
}
