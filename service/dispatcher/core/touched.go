package core

import (
	"cmp"
	"maps"
	"slices"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/dispatcher/core/durable"
)

// touches has what has changed since the last call of adjust, which looks at nothing else.
type touches struct {
	// epochs has the epochs with a change.
	epochs map[*durable.Epoch]*touch
	// workers is set if a worker came or left, or it became able or unable to take streams.
	workers bool
	// updates is set if something changed that all watches show.
	updates bool
}

// touch is the change of one epoch.
type touch struct {
	// streams have changed. whole is set if all may have.
	streams map[uint32]bool
	whole   bool
}

func newTouches() touches { return touches{epochs: map[*durable.Epoch]*touch{}} }

// touch notes that an epoch has changed.
func (c *Core) touch(epoch *durable.Epoch) *touch {
	c.dirty = true
	t := c.touched.epochs[epoch]
	if t == nil {
		t = &touch{streams: map[uint32]bool{}}
		c.touched.epochs[epoch] = t
	}
	c.schedule.EpochChanged(epoch)
	return t
}

// touchStream notes that a stream has changed.
func (c *Core) touchStream(epoch *durable.Epoch, stream uint32) {
	t := c.touch(epoch)
	t.streams[stream] = true
	c.schedule.StreamChanged(epoch, stream)
	if held := epoch.Find(stream); held != nil && held.Worker != nil {
		c.schedule.WorkerChanged(held.Worker.WorkerId)
	}
}

// touchEpoch notes that all of an epoch may have changed.
func (c *Core) touchEpoch(epoch *durable.Epoch) {
	c.touch(epoch).whole = true
}

// touchBefore notes, before a record is applied, which workers and epochs it concerns. The state does not show them
// afterwards.
func (c *Core) touchBefore(record *pecanv1.Record) {
	switch kind := record.GetKind().(type) {
	case *pecanv1.Record_LeaseLost:
		id := kind.LeaseLost.Id
		if _, epoch, err := c.state.Epoch(id.GetJobId(), id.GetEpoch()); err == nil {
			c.schedule.WorkerChanged(epoch.Find(id.GetStream()).GetWorker().GetWorkerId())
		}
	case *pecanv1.Record_EpochClosed:
		_, epoch, err := c.state.Epoch(kind.EpochClosed.JobId, kind.EpochClosed.Epoch)
		if err != nil {
			return
		}
		for _, stream := range epoch.Active() {
			c.schedule.WorkerChanged(stream.Worker.GetWorkerId())
		}
		c.touchCarry(epoch.Job)
		c.schedule.EpochEnded(epoch)
		delete(c.touched.epochs, epoch)
	}
}

// touchRecord notes what a record changed.
func (c *Core) touchRecord(record *pecanv1.Record) {
	stream := func(id *pecanv1.StreamId) {
		if _, epoch, err := c.state.Epoch(id.GetJobId(), id.GetEpoch()); err == nil {
			c.touchStream(epoch, id.GetStream())
			if epoch.Job.Plan.IsClosing(id.GetStream()) {
				// The rest of it may be truncated. Then nobody needs what it joins.
				c.touchEpoch(epoch)
			}
		}
	}
	epoch := func(jobID string, number uint64) {
		if _, epoch, err := c.state.Epoch(jobID, number); err == nil {
			c.touchEpoch(epoch)
		}
	}
	switch record.GetKind().(type) {
	case *pecanv1.Record_EpochOpened, *pecanv1.Record_EpochClosed, *pecanv1.Record_OrderSpread, *pecanv1.Record_CacheDecided, *pecanv1.Record_JobRemoved:
		c.caches.shared = nil
	}
	switch kind := record.GetKind().(type) {
	case *pecanv1.Record_EpochOpened:
		epoch(kind.EpochOpened.JobId, kind.EpochOpened.Epoch)
	case *pecanv1.Record_EpochJoined:
		epoch(kind.EpochJoined.JobId, kind.EpochJoined.Epoch)
	case *pecanv1.Record_EpochAdopted:
		epoch(kind.EpochAdopted.JobId, kind.EpochAdopted.Epoch)
	case *pecanv1.Record_EpochLeft:
		epoch(kind.EpochLeft.JobId, kind.EpochLeft.Epoch)
	case *pecanv1.Record_EpochFailed:
		epoch(kind.EpochFailed.JobId, kind.EpochFailed.Epoch)
	case *pecanv1.Record_EpochCarried:
		c.touchCarry(c.state.Job(kind.EpochCarried.JobId))
	case *pecanv1.Record_JobFailed:
		for _, open := range c.state.Job(kind.JobFailed.JobId).Epochs {
			c.touchEpoch(open)
		}
	case *pecanv1.Record_StreamAdded:
		stream(kind.StreamAdded.Id)
	case *pecanv1.Record_LeaseLost:
		stream(kind.LeaseLost.Id)
	case *pecanv1.Record_ConsumerReleased:
		stream(kind.ConsumerReleased.Id)
	case *pecanv1.Record_StreamDelivered:
		stream(kind.StreamDelivered.Id)
	case *pecanv1.Record_LeasesGranted:
		c.touchList(kind.LeasesGranted)
	case *pecanv1.Record_ConsumersAssigned:
		c.touchList(kind.ConsumersAssigned)
	case *pecanv1.Record_StreamsProduced:
		c.touchList(kind.StreamsProduced)
	case *pecanv1.Record_StreamsDelivered:
		c.touchList(kind.StreamsDelivered)
	case *pecanv1.Record_CacheSegmentAdded, *pecanv1.Record_CacheCommitted, *pecanv1.Record_CacheSegmentDropped, *pecanv1.Record_CacheEvicted,
		*pecanv1.Record_CacheDecided:
		c.touched.updates = true
	}
}

func (c *Core) touchList(list interface {
	GetOpened() uint64
	GetStreams() []int64
}) {
	epoch := c.state.Opened(list.GetOpened())
	streams, err := pecanv1.Numbers[uint32](list.GetStreams())
	if err != nil {
		return
	}
	last, closes := epoch.Job.Plan.LastClosing()
	for _, stream := range streams {
		c.touchStream(epoch, stream)
		if closes && stream == last {
			c.touchCarry(epoch.Job)
		}
	}
}

// touchedEpochs returns the epochs that have changed, in the order of jobs and epochs.
func (c *Core) touchedEpochs() []*durable.Epoch {
	return slices.SortedFunc(maps.Keys(c.touched.epochs), compareEpochs)
}

func compareEpochs(a, b *durable.Epoch) int {
	return cmp.Or(cmp.Compare(a.Job.Sequence, b.Job.Sequence), cmp.Compare(a.Epoch, b.Epoch))
}

// touchedStreams returns the active streams of an epoch that have changed, ascending.
func (c *Core) touchedStreams(epoch *durable.Epoch) []*pecanv1.StoredStream {
	t := c.touched.epochs[epoch]
	if t == nil {
		return nil
	}
	if t.whole {
		return epoch.Active()
	}
	var list []*pecanv1.StoredStream
	for _, number := range slices.Sorted(maps.Keys(t.streams)) {
		if stream := epoch.Find(number); stream != nil {
			list = append(list, stream)
		}
	}
	return list
}

// dropSettled drops the volatile state of streams that are settled.
func (c *Core) dropSettled() {
	for epoch, t := range c.touched.epochs {
		state := c.epochs[passKey{epoch.Job.JobId, epoch.Epoch}]
		if state == nil || epoch.KeepsAll() {
			continue
		}
		for number := range t.streams {
			if epoch.Settled(number) {
				delete(state.streams, number)
			}
		}
	}
}
