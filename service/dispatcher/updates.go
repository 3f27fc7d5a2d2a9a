package dispatcher

import (
	"maps"
	"slices"

	"google.golang.org/protobuf/proto"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
)

const (
	// maxPendingUpdates bounds the updates that wait for a slow client before they are merged.
	maxPendingUpdates = 64
	// maxUpdateStreams bounds the streams of one update.
	maxUpdateStreams = 4096
)

// mergeUpdates returns differences that together say the same as a sequence of them. A stream that was listed more than
// once is listed as it was last. Each part has at most maxUpdateStreams streams.
func mergeUpdates(updates []*pecanv1.EpochUpdate) []*pecanv1.EpochUpdate {
	if len(updates) < 2 {
		return updates
	}
	newest := updates[len(updates)-1]
	if newest.More {
		// The rest of a full update is pushed by the same decision.
		return updates
	}
	streams, revoked := map[uint32]*pecanv1.ConsumerStream{}, map[uint32]bool{}
	var workers []*pecanv1.WorkerAddress
	full := false
	for _, update := range updates {
		full = full || update.Full
		workers = append(workers, update.Workers...)
		for _, number := range update.Revoked {
			delete(streams, number)
			revoked[number] = true
		}
		for _, stream := range update.Streams {
			delete(revoked, stream.Stream)
			streams[stream.Stream] = stream
		}
	}
	numbers := slices.Sorted(maps.Keys(streams))
	var parts []*pecanv1.EpochUpdate
	for first := true; first || len(numbers) > 0; first = false {
		part := &pecanv1.EpochUpdate{Version: updates[0].Version + uint64(len(parts)), More: true}
		if first {
			part.Full, part.Workers, part.Revoked = full, workers, slices.Sorted(maps.Keys(revoked))
		}
		n := min(len(numbers), maxUpdateStreams)
		for _, number := range numbers[:n] {
			part.Streams = append(part.Streams, streams[number])
		}
		numbers, parts = numbers[n:], append(parts, part)
	}
	last := proto.CloneOf(newest)
	end := parts[len(parts)-1]
	last.Streams, last.Workers, last.Revoked, last.Full = end.Streams, end.Workers, end.Revoked, end.Full
	parts[len(parts)-1] = last
	return parts
}
