package core

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"google.golang.org/protobuf/proto"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/proto/reason"
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
	epoch := findEpoch(job, req.Epoch)
	if epoch == nil || findPass(epoch, req.ClientId) == nil {
		return reason.New(reason.EpochUnknown, "watch epoch: client %q has not opened epoch %d of job %q, or has closed it", req.ClientId, req.Epoch, req.JobId)
	}
	c.endWatches(func(w *watchState) bool {
		return w.client == req.ClientId && w.job == req.JobId && w.epoch == req.Epoch
	}, reason.New(reason.Closed, "watch epoch: client %q watches epoch %d of job %q on a newer connection", req.ClientId, req.Epoch, req.JobId))
	c.watches[in.ID] = &watchState{client: req.ClientId, job: req.JobId, epoch: req.Epoch}
	c.dirty = true
	return nil
}

// watched tells whether a client follows a pass.
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

// pushUpdates sends every watch the snapshot of its pass if it differs from the one before.
func (c *Core) pushUpdates() {
	busy := sync.OnceValue(c.busy)
	for _, id := range slices.Sorted(maps.Keys(c.watches)) {
		w := c.watches[id]
		job := c.state.jobs[w.job]
		epoch := findEpoch(job, w.epoch)
		update := c.snapshot(job, epoch, w.client, busy)
		if w.sent != nil {
			update.Version = w.sent.Version
			if proto.Equal(update, w.sent) {
				continue
			}
		}
		c.versions++
		// The incarnation keeps versions growing over a restart.
		update.Version = c.state.incarnation<<40 + c.versions
		w.sent = update
		c.effect(Update{id, update})
	}
}

// snapshot is what a client has to know of its pass.
func (c *Core) snapshot(job *pecanv1.StoredJob, epoch *pecanv1.StoredEpoch, clientID string, busy func() int) *pecanv1.EpochUpdate {
	final := streamsFinal(job, epoch)
	update := &pecanv1.EpochUpdate{TotalStreams: uint32(len(epoch.Streams)), StreamsFinal: final, NoMoreStreams: final, Error: epoch.Error}
	if job.Error != nil {
		update.Error = job.Error
	}
	for _, stream := range epoch.Streams {
		soft := c.soft(streamKey{job.JobId, epoch.Epoch, stream.Stream})
		if stream.Consumer != clientID {
			if !stream.Delivered {
				update.NoMoreStreams = false
			}
			continue
		}
		shown := &pecanv1.ConsumerStream{
			Stream: stream.Stream, Lease: stream.Lease, StartIndex: stream.StartIndex, Release: soft.moving,
			Ended: stream.Produced || stream.Delivered, Assignment: stream.Assignment,
		}
		if !stream.Delivered {
			shown.Worker = stream.Worker
		}
		if stream.Truncated {
			shown.Truncated, shown.Produced = true, stream.Progress
		}
		if soft.moving {
			// It will be another's, who may die and leave the rest to this client.
			update.NoMoreStreams = false
		}
		if shown.Ended {
			shown.Count = stream.Count
		}
		update.Streams = append(update.Streams, shown)
	}
	update.Waiting, update.NoWorkers = c.waitingWords(job, epoch, clientID, busy)
	update.CacheProblem = c.cacheTrouble(job)
	return update
}

// waitingWords says why nothing moves for a client, or nothing when something does, and whether it is for want of workers.
// An empty client asks for the epoch as a whole. busy is Core.busy, counted once for many epochs.
func (c *Core) waitingWords(job *pecanv1.StoredJob, epoch *pecanv1.StoredEpoch, clientID string, busy func() int) (words string, noWorkers bool) {
	if job.Error != nil || epoch.Error != nil || delivered(epoch) || len(epoch.Passes) == 0 || allAhead(epoch) {
		return "", false
	}
	var away, queued, unread, closing []string
	mine := false
	for _, stream := range epoch.Streams {
		if stream.Delivered || clientID != "" && stream.Consumer != clientID && (stream.Consumer != "" || stream.Worker != nil) {
			continue
		}
		mine = true
		if stream.Worker == nil {
			queued = append(queued, fmt.Sprint(stream.Stream))
			for _, run := range c.closingBefore(job, stream) {
				closing = append(closing, c.closingWords(stream, run))
			}
			continue
		}
		if worker := c.workers[stream.Worker.WorkerId]; worker != nil && !worker.away {
			soft := c.streams[streamKey{job.JobId, epoch.Epoch, stream.Stream}]
			if soft == nil || soft.reports == 0 {
				return "", false
			}
			unread = append(unread, fmt.Sprintf("stream %d: worker %s at %s: %s", stream.Stream, stream.Worker.WorkerId, stream.Worker.Tcp, soft.reported))
			continue
		}
		away = append(away, fmt.Sprintf("stream %d: worker %s at %s", stream.Stream, stream.Worker.WorkerId, stream.Worker.Tcp))
	}
	switch {
	case len(unread) > 0:
		return fmt.Sprintf("the trainer cannot read from workers that are registered; are their advertised addresses right? (%s)", shorten(unread)), false
	case len(away) > 0:
		return fmt.Sprintf("waiting for workers whose connection broke to return, or to be replaced (%s)", shorten(away)), false
	case len(c.workers) == 0:
		return "no worker is registered with the dispatcher; start one (pecan-worker --dispatcher HOST:PORT)" + c.lastLoss(epoch), true
	case !mine && len(epoch.Streams) == 0:
		return "no registered worker is connected", true
	case !mine:
		return fmt.Sprintf("every stream that is left is read by other trainers of job %q; this pass ends when they have read them", job.Name), false
	}
	connected, usable := 0, 0
	for _, worker := range c.workers {
		if !worker.away {
			connected++
		}
		if c.usable(worker) {
			usable++
		}
	}
	if usable == 0 {
		return fmt.Sprintf("none of %d registered workers answers (%d connected)%s", len(c.workers), connected, c.lastLoss(epoch)), true
	}
	if len(closing) > 0 {
		return fmt.Sprintf("waiting for workers to close the cache or snapshot files of an earlier pass (%s)", shorten(closing)), false
	}
	return fmt.Sprintf("all %d workers are busy (%d streams running); waiting for room: stream %s", usable, busy(), shorten(queued)), false
}

// busy is how many streams run.
func (c *Core) busy() int {
	n := 0
	c.eachStream(func(job *pecanv1.StoredJob, epoch *pecanv1.StoredEpoch, stream *pecanv1.StoredStream) {
		if running(job, epoch, stream) {
			n++
		}
	})
	return n
}

// lastLoss says why a stream of the epoch lost its worker.
func (c *Core) lastLoss(epoch *pecanv1.StoredEpoch) string {
	for _, stream := range epoch.Streams {
		if !stream.Delivered && stream.Worker == nil && stream.Why != "" {
			return fmt.Sprintf("; stream %d: %s", stream.Stream, stream.Why)
		}
	}
	return ""
}

// shorten keeps long lists out of sentences.
func shorten(words []string) string {
	const most = 4
	if len(words) <= most {
		return strings.Join(words, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(words[:most], ", "), len(words)-most)
}
