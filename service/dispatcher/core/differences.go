package core

import (
	"maps"
	"slices"

	"google.golang.org/protobuf/proto"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/dispatcher/core/durable"
)

// maxPart bounds the streams in one part of an update.
const maxPart = 4096

// pushDifferences sends what has changed since the last update of the watch: at first all active streams of the client.
// The client knows what it has finished, so these streams are not mentioned.
func (c *Core) pushDifferences(id WatchID, w *watchState, epoch *durable.Epoch, update *pecanv1.EpochUpdate) {
	part := &pecanv1.EpochUpdate{Full: w.sent == nil}
	parts := []*pecanv1.EpochUpdate{part}
	for _, number := range c.changedFor(w, epoch) {
		stream, known := epoch.Find(number), w.streams[number]
		if stream == nil || stream.Delivered || stream.Consumer != w.client {
			if delete(w.streams, number); known != nil && stream != nil && !stream.Delivered {
				part.Revoked = append(part.Revoked, number)
			}
			continue
		}
		shown := c.consumerStream(epoch, stream)
		worker := w.workers[stream.Worker.GetWorkerId()]
		if stream.Worker != nil && !proto.Equal(worker.address, stream.Worker) {
			worker = watchedWorker{uint32(len(w.workers)) + w.renamed + 1, stream.Worker}
			if w.workers[stream.Worker.WorkerId].number > 0 {
				w.renamed++
			}
			w.workers[stream.Worker.WorkerId] = worker
			part.Workers = append(part.Workers, stream.Worker)
		}
		shown.WorkerNumber = worker.number
		if known != nil && proto.Equal(known, shown) {
			continue
		}
		w.streams[number] = shown
		if part.Streams = append(part.Streams, shown); len(part.Streams) == maxPart {
			part = &pecanv1.EpochUpdate{}
			parts = append(parts, part)
		}
	}
	if w.sent != nil && proto.Equal(w.sent, update) && len(parts) == 1 && len(part.Streams)+len(part.Revoked) == 0 {
		return
	}
	w.sent = proto.CloneOf(update)
	proto.Merge(part, update)
	part.Delivered = epoch.DeliveredStreams()
	for i, one := range parts {
		one.Version, one.More = c.nextVersion(), i < len(parts)-1
		c.effect(Update{id, one, len(w.streams)})
	}
}

// changedFor returns the streams that may have changed for a watch, ascending.
func (c *Core) changedFor(w *watchState, epoch *durable.Epoch) []uint32 {
	t := c.touched.epochs[epoch]
	switch {
	case w.sent != nil && t == nil:
		return nil
	case w.sent != nil && !t.whole:
		return slices.Sorted(maps.Keys(t.streams))
	}
	numbers := make([]uint32, 0, epoch.ActiveStreams())
	for _, stream := range epoch.Active() {
		numbers = append(numbers, stream.Stream)
	}
	for number := range w.streams {
		if epoch.Find(number) == nil {
			numbers = append(numbers, number)
		}
	}
	slices.Sort(numbers)
	return numbers
}
