package run

import (
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pecan-ml/pecan/native/tf"
	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/worker/checkpoint"
)

// saver takes the checkpoints of one run.
type saver struct {
	saved, notSaved, damaged atomic.Uint64
	restored                 atomic.Bool
	writing                  sync.WaitGroup
	// index is the index of the last checkpoint. It belongs to the run's goroutine.
	index uint64

	mu sync.Mutex
	// due is the time of the next checkpoint. failed counts the failures in a row.
	due    time.Time
	failed int
	// files are the stream's checkpoints as of the last listing.
	files []checkpoint.File
	// reportedAcked holds the reader's index in the last two heartbeats. The dispatcher has received at least
	// one of them, and starts a successor there.
	reportedAcked [2]uint64
}

// saves reports whether checkpoints of this run are useful. The iterator must be restorable, which an iterator
// downstream of a cached step is not, and the plan must not be able to seek. The state of a serial graph fits only
// serial graphs.
func (r *run) saves() bool {
	resume := r.command.GetPlan().GetResume()
	return r.stream.streams.Checkpoints != nil && resume.GetCheckpoints() && resume.GetStrategy() != pecanv1.Resume_SEEK &&
		!r.command.GetClosing() && r.command.GetCache() == nil && !r.serial
}

// header is what all checkpoints of the run have in common.
func (r *run) header() *pecanv1.Checkpoint {
	return &pecanv1.Checkpoint{
		Fingerprint: r.command.GetFingerprint(), PlanHash: planAndOrder(r.command.GetPlan()), Mode: r.command.GetOptions().GetMode(),
		Seed: r.command.GetOptions().GetSeed(), Id: r.command.GetId(), TensorflowVersion: tf.Version(),
	}
}

// planAndOrder identifies the plan and, if the steps are reordered, their order. The state of an iterator fits
// no graph of another order.
func planAndOrder(plan *pecanv1.Plan) string {
	if len(plan.GetOrder()) == 0 {
		return plan.GetHash()
	}
	return pecanv1.OrderHash(plan, plan.GetOrder())
}

func (r *run) checkpointDir() string {
	return checkpoint.StreamDir(r.stream.streams.Identity.Cluster(), r.command.GetId())
}

// restore opens the stream's graph at a checkpoint.
func (r *run) restore(from checkpoint.File) (*tf.Iterator, error) {
	begun := time.Now()
	header, state, err := r.stream.streams.Checkpoints.Read(from.Name, r.header())
	if err != nil {
		return nil, err
	}
	if header.GetIndex() != from.Index {
		return nil, checkpoint.ErrForeign
	}
	if header.GetPooled() && !r.mayPool(true) {
		return nil, errOwnIterator
	}
	arithmetic, closers := r.start, len(r.closers)
	r.start = header.GetStart()
	it, err := r.open(&restorable{from.Index, header.GetPooled(), state})
	if err != nil {
		r.release(closers)
		r.start = arithmetic
		return nil, err
	}
	// Older headers lack this value. The start index is then a safe bound, because no run starts by index
	// after a failed element.
	r.window.Restart(from.Index, max(header.GetCleanBelow(), min(arithmetic, from.Index)))
	r.saver.restored.Store(true)
	r.saver.index = from.Index
	r.stream.log.Info("the stream continues from a checkpoint", "index", from.Index, "bytes", len(state), "took", time.Since(begun))
	return it, nil
}

// maySave takes a checkpoint if one is due and the reader is not waiting.
func (r *run) maySave(it *tf.Iterator) {
	due, now, interval := r.saver.dueAt(), time.Now(), r.stream.streams.Options.CheckpointInterval
	switch {
	case due.IsZero():
		r.saver.next(now.Add(interval))
	case now.Before(due), r.index() == r.saver.index:
	case r.window.ReaderWaits() && now.Sub(due) < interval:
	case r.saver.above(r.window.Wanted()) >= checkpoint.MostAhead:
		r.saver.next(now.Add(interval))
	default:
		r.save(it)
	}
}

// save takes a checkpoint before the next element. The iterator stands still until its state is copied; another
// goroutine writes the copy. The interval to the next checkpoint keeps the cost below the configured share of
// the cores' time. A pooled iterator has no state of the stream before its first element.
func (r *run) save(it *tf.Iterator) {
	if r.beginsPooled() {
		return
	}
	// No other checkpoint begins until this one is written.
	r.saver.next(time.Now().Add(never))
	header := r.header()
	header.Index, header.Start, header.Lease, header.CleanBelow = r.index(), r.start, r.command.GetLease(), r.window.CleanProduced()
	header.Pooled = len(r.pooled) > 0
	begun := time.Now()
	state, err := it.Save()
	if err != nil {
		r.notSaved(err)
		return
	}
	stalled := time.Since(begun)
	r.saver.index = header.GetIndex()
	r.saver.writing.Go(func() {
		defer state.Free()
		size := 0
		err := state.Write(func(data []byte) error {
			size = len(data)
			return r.stream.streams.Checkpoints.Write(r.checkpointDir(), header, data)
		})
		if err == nil {
			var left []checkpoint.File
			left, err = r.stream.streams.Checkpoints.Prune(r.checkpointDir(), append(r.saver.reported(), r.window.Wanted())...)
			r.saver.setFiles(left)
		}
		if err != nil {
			r.notSaved(err)
			return
		}
		took := time.Since(begun)
		r.saver.saved.Add(1)
		r.saver.written(begun.Add(max(r.stream.streams.Options.CheckpointInterval, r.stream.streams.checkpointPause(took))))
		r.stream.log.Debug("a checkpoint was saved", "index", header.GetIndex(), "bytes", size, "stalled", stalled, "took", took)
	})
}

// checkpointPause is the time between two checkpoints of a stream, derived from the cost of the last one. All
// streams together use no more of the cores than one stream alone may.
func (ss *Streams) checkpointPause(took time.Duration) time.Duration {
	crowd := max(1, float64(ss.runs.Load())/float64(runtime.NumCPU()))
	return time.Duration(float64(took) * crowd / ss.Options.CheckpointShare)
}

// never is longer than any write of a checkpoint takes.
const never = 1 << 50 * time.Nanosecond

// notSaved counts a checkpoint that could not be taken or written. The delay doubles with each failure: a full
// disk stays full for a while, and some iterators can never be saved.
func (r *run) notSaved(err error) {
	if r.ctx.Err() != nil {
		return
	}
	r.saver.notSaved.Add(1)
	wait := r.saver.postpone(r.stream.streams.Options.CheckpointInterval)
	r.stream.log.Warn("saving a checkpoint failed", "error", err, "next_in", wait)
}

// longestPause bounds the delay after failures, unless the configured interval is longer.
const longestPause = 10 * time.Minute

// noteReported records the reader's index in a heartbeat.
func (s *saver) noteReported(acked uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reportedAcked = [2]uint64{s.reportedAcked[1], acked}
}

// reported returns the indices at which the dispatcher may assume the reader.
func (s *saver) reported() []uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.reportedAcked[:])
}

// setFiles records which checkpoints exist. The run's goroutine does not list them itself: a directory that
// hangs would delay its elements.
func (s *saver) setFiles(there []checkpoint.File) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.files = there
}

// above counts the checkpoints above an index.
func (s *saver) above(index uint64) (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, each := range s.files {
		if each.Index > index {
			n++
		}
	}
	return n
}

func (s *saver) dueAt() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.due
}

func (s *saver) next(due time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.due = due
}

func (s *saver) written(due time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.due, s.failed = due, 0
}

func (s *saver) postpone(interval time.Duration) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.failed = min(s.failed+1, 16)
	wait := min(interval<<s.failed, max(interval, longestPause))
	s.due = time.Now().Add(wait)
	return wait
}

// removeCheckpoints removes the checkpoints of a stream whose epoch is over.
func (ss *Streams) removeCheckpoints(s *Stream) {
	<-s.closed()
	if err := ss.Checkpoints.Remove(checkpoint.StreamDir(ss.Identity.Cluster(), s.key.ID())); err != nil {
		s.log.Warn("removing checkpoints failed", "error", err)
	}
}
