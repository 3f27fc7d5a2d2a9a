package core

import (
	"cmp"
	"maps"
	"slices"
	"sync"

	"google.golang.org/protobuf/proto"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/proto/reason"
	"github.com/pecan-ml/pecan/service/dispatcher/core/durable"
	"github.com/pecan-ml/pecan/service/dispatcher/core/schedule"
)

// watchState is a client that wants the state of a pass.
type watchState struct {
	client, job string
	epoch       uint64
	// sent is the last update, without its lists.
	sent *pecanv1.EpochUpdate
	// streams has what the client knows of each stream. workers has the numbers of workers in this watch, by worker id.
	streams map[uint32]*pecanv1.ConsumerStream
	workers map[string]watchedWorker
	// renamed counts the workers that got a further number, because their address changed.
	renamed uint32
}

type watchedWorker struct {
	number  uint32
	address *pecanv1.WorkerAddress
}

func (c *Core) watch(in Watch) error {
	req := in.Request
	job, err := c.member("watch epoch", req.ClientId, req.JobId)
	if err != nil {
		return err
	}
	epoch := durable.FindEpoch(job, req.Epoch)
	if epoch == nil || durable.FindPass(epoch, req.ClientId) == nil {
		return reason.New(reason.EpochUnknown, "watch epoch: client %q has not opened epoch %d of job %q, or has closed it", req.ClientId, req.Epoch, req.JobId)
	}
	c.endWatches(func(w *watchState) bool {
		return w.client == req.ClientId && w.job == req.JobId && w.epoch == req.Epoch
	}, reason.New(reason.Closed, "watch epoch: client %q watches epoch %d of job %q on a newer connection", req.ClientId, req.Epoch, req.JobId))
	c.watches[in.ID] = &watchState{
		client: req.ClientId, job: req.JobId, epoch: req.Epoch,
		streams: map[uint32]*pecanv1.ConsumerStream{}, workers: map[string]watchedWorker{},
	}
	state := c.volatileEpoch(passKey{req.JobId, req.Epoch})
	state.watches = append(state.watches, in.ID)
	c.stalled[in.ID], c.dirty = true, true
	return nil
}

// unwatch ends a watch that its client has left.
func (c *Core) unwatch(id WatchID) {
	w := c.watches[id]
	if w == nil {
		return
	}
	delete(c.watches, id)
	delete(c.stalled, id)
	if state := c.epochs[passKey{w.job, w.epoch}]; state != nil {
		state.watches = slices.DeleteFunc(state.watches, func(other WatchID) bool { return other == id })
	}
}

// watched reports whether a client watches a pass.
func (c *Core) watched(clientID, jobID string, epoch uint64) bool {
	state := c.epochs[passKey{jobID, epoch}]
	return state != nil && slices.ContainsFunc(state.watches, func(id WatchID) bool { return c.watches[id].client == clientID })
}

func (c *Core) endWatches(which func(*watchState) bool, err *reason.Error) {
	for _, id := range slices.Sorted(maps.Keys(c.watches)) {
		if which(c.watches[id]) {
			c.unwatch(id)
			c.effect(EndWatch{id, err})
		}
	}
}

// pushUpdates sends each watch what has changed of its pass.
func (c *Core) pushUpdates() {
	due := maps.Clone(c.stalled)
	for epoch := range c.touched.epochs {
		if state := c.epochs[passKey{epoch.Job.JobId, epoch.Epoch}]; state != nil {
			for _, id := range state.watches {
				due[id] = true
			}
		}
	}
	if c.touched.updates {
		for id, w := range c.watches {
			if usesCaches(c.state.Job(w.job)) {
				due[id] = true
			}
		}
	}
	busy := sync.OnceValue(c.runningStreams)
	for _, id := range slices.Sorted(maps.Keys(due)) {
		w := c.watches[id]
		epoch := durable.FindEpoch(c.state.Job(w.job), w.epoch)
		update := c.passUpdate(epoch, w, busy)
		// A pass in which nothing moves depends on all others.
		if update.Waiting != "" {
			c.stalled[id] = true
		} else {
			delete(c.stalled, id)
		}
		c.pushDifferences(id, w, epoch, update)
	}
}

// passUpdate returns what a client must know of its pass, without lists.
func (c *Core) passUpdate(epoch *durable.Epoch, w *watchState, busy func() int) *pecanv1.EpochUpdate {
	job := epoch.Job
	update := &pecanv1.EpochUpdate{TotalStreams: epoch.Total(), StreamsFinal: schedule.Final(epoch), Error: epoch.Error}
	update.Carried, update.Carry = epoch.Carried, epoch.Carry
	update.NoMoreStreams = update.StreamsFinal && c.listsAll(epoch, w)
	if job.Error != nil {
		update.Error = job.Error
	}
	update.Waiting, update.NoWorkers = c.waitingReason(job, epoch, w.client, busy)
	update.CacheDecision = decisionLine(job)
	update.CacheProblem = cmp.Or(c.cacheProblem(job), c.candidatesProblem(job))
	return update
}

// listsAll reports whether every stream that is not delivered is listed as the client's, and stays so. A client that was
// asked to release a stream may get it back, if the next consumer dies.
func (c *Core) listsAll(epoch *durable.Epoch, w *watchState) bool {
	if durable.Private(epoch.Job) {
		return epoch.FreshStreams() == 0
	}
	mine := epoch.Undelivered(w.client)
	state := c.volatileEpoch(passKey{epoch.Job.JobId, epoch.Epoch})
	for stream := range state.releasing {
		if epoch.Find(stream).GetConsumer() == w.client {
			mine--
		}
	}
	return uint32(mine) == epoch.Total()-epoch.DeliveredStreams()
}

func (c *Core) nextVersion() uint64 {
	c.versions++
	// The incarnation makes versions grow across restarts.
	return c.state.Incarnation()<<40 + c.versions
}

// consumerStream returns what the consumer of a stream must know of it, without the worker.
func (c *Core) consumerStream(epoch *durable.Epoch, stream *pecanv1.StoredStream) *pecanv1.ConsumerStream {
	shown := &pecanv1.ConsumerStream{
		Stream: stream.Stream, Lease: stream.Lease, StartIndex: stream.StartIndex, Ended: stream.Produced || stream.Delivered, Assignment: stream.Assignment,
	}
	if volatileStream := c.findVolatile(keyOf(epoch.Job, epoch, stream)); volatileStream != nil {
		shown.Release = volatileStream.releasing
	}
	if stream.Truncated {
		shown.Truncated, shown.Produced = true, stream.Progress
	}
	if shown.Ended {
		shown.Count = stream.Count
	}
	return shown
}

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
