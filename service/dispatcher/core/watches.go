package core

import (
	"maps"
	"slices"
	"sync"

	"google.golang.org/protobuf/proto"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/proto/reason"
	"github.com/pecan-ml/pecan/service/dispatcher/core/durable"
	"github.com/pecan-ml/pecan/service/dispatcher/core/schedule"
)

// watchState is a client that wants the snapshots of a pass.
type watchState struct {
	client, job string
	epoch       uint64
	sent        *pecanv1.EpochUpdate
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
	c.watches[in.ID] = &watchState{client: req.ClientId, job: req.JobId, epoch: req.Epoch}
	c.dirty = true
	return nil
}

// watched reports whether a client watches a pass.
func (c *Core) watched(clientID, jobID string, epoch uint64) bool {
	for _, w := range c.watches {
		if w.client == clientID && w.job == jobID && w.epoch == epoch {
			return true
		}
	}
	return false
}

func (c *Core) endWatches(which func(*watchState) bool, err *reason.Error) {
	for _, id := range slices.Sorted(maps.Keys(c.watches)) {
		if which(c.watches[id]) {
			delete(c.watches, id)
			c.effect(EndWatch{id, err})
		}
	}
}

// pushUpdates sends each watch its pass's snapshot if it has changed.
func (c *Core) pushUpdates() {
	busy := sync.OnceValue(c.runningStreams)
	for _, id := range slices.Sorted(maps.Keys(c.watches)) {
		w := c.watches[id]
		job := c.state.Job(w.job)
		epoch := durable.FindEpoch(job, w.epoch)
		update := c.snapshot(job, epoch, w.client, busy)
		if w.sent != nil {
			update.Version = w.sent.Version
			if proto.Equal(update, w.sent) {
				continue
			}
		}
		c.versions++
		// The incarnation makes versions grow across restarts.
		update.Version = c.state.Incarnation()<<40 + c.versions
		w.sent = update
		c.effect(Update{id, update})
	}
}

// snapshot returns what a client must know of its pass.
func (c *Core) snapshot(job *pecanv1.StoredJob, epoch *pecanv1.StoredEpoch, clientID string, busy func() int) *pecanv1.EpochUpdate {
	final := schedule.Final(job, epoch)
	update := &pecanv1.EpochUpdate{TotalStreams: uint32(len(epoch.Streams)), StreamsFinal: final, NoMoreStreams: final, Error: epoch.Error}
	if job.Error != nil {
		update.Error = job.Error
	}
	for _, stream := range epoch.Streams {
		volatileStream := c.volatileStream(streamKey{job.JobId, epoch.Epoch, stream.Stream})
		if stream.Consumer != clientID {
			if !stream.Delivered {
				update.NoMoreStreams = false
			}
			continue
		}
		shown := &pecanv1.ConsumerStream{
			Stream: stream.Stream, Lease: stream.Lease, StartIndex: stream.StartIndex, Release: volatileStream.releasing,
			Ended: stream.Produced || stream.Delivered, Assignment: stream.Assignment,
		}
		if !stream.Delivered {
			shown.Worker = stream.Worker
		}
		if stream.Truncated {
			shown.Truncated, shown.Produced = true, stream.Progress
		}
		if volatileStream.releasing {
			// The next consumer may die and leave the rest to this client.
			update.NoMoreStreams = false
		}
		if shown.Ended {
			shown.Count = stream.Count
		}
		update.Streams = append(update.Streams, shown)
	}
	update.Waiting, update.NoWorkers = c.waitingReason(job, epoch, clientID, busy)
	update.CacheProblem = c.cacheProblem(job)
	return update
}
