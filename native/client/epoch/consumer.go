package epoch

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/pecan-ml/pecan/native/buffer"
	"github.com/pecan-ml/pecan/native/client/control"
	"github.com/pecan-ml/pecan/native/client/transport"
	"github.com/pecan-ml/pecan/native/client/wait"
	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/proto/reason"
)

// defaultMaxElementBytes is the size of the largest accepted element if the job sets no limit.
const defaultMaxElementBytes = 2 << 30

// Job has the questions and reports of an epoch to its job. The job numbers and prefetches passes, and handles
// its own loss.
type Job interface {
	// NumberPass returns the number of an epoch's pass, just before the epoch is opened.
	NumberPass(e *Epoch) uint64
	// CountPass counts the pass of an epoch that is open.
	CountPass(e *Epoch)
	// NoteOpened records the number of an epoch at the dispatcher. begun is true if an iteration begins with it.
	NoteOpened(number uint64, begun bool)
	// Prefetch opens the epoch after another one if it is not open yet. It must not block.
	Prefetch(after *Epoch)
	// Expected returns how many elements a pass of this client probably has; -1 if unknown.
	Expected() int64
	// ClientUnknown is called when the dispatcher does not know this client.
	ClientUnknown(ctx context.Context, why *reason.Error)
	// Lose ends everything that belongs to a job that the dispatcher does not know any more.
	Lose(why string)
}

// Consumer is one client's membership of a job, shared by all epochs of the job.
type Consumer struct {
	Link    *control.Link
	Workers *transport.Workers
	Pool    *buffer.Pool
	Job     Job

	// JobID and ClientID are the dispatcher's names. Request created the job.
	JobID    string
	ClientID string
	Request  *pecanv1.CreateJobRequest
	Plan     *pecanv1.Plan
	Options  *pecanv1.JobOptions

	// Heartbeats and Reports count what was sent: heartbeats, and reports of unreachable workers.
	Heartbeats, Reports atomic.Uint64
	// Leaving are the epochs that are closed here while their close still has to reach the dispatcher.
	Leaving Set

	// known is the term for which the dispatcher certainly knows this consumer.
	known atomic.Pointer[leaseTerm]
	// cacheWarned is set if the warning about pecan.cache() was logged.
	cacheWarned atomic.Bool
	// cacheDecision is the newest decision on the job's cache that was logged.
	cacheDecision atomic.Pointer[string]
}

// leaseTerm is the term of a successful call: when the call began, and for how long the dispatcher keeps this
// consumer without another call.
type leaseTerm struct {
	since wait.Time
	limit time.Duration
}

// Shared reports whether other trainers may read the job too.
func (c *Consumer) Shared() bool { return c.Request.GetJobName() != "" }

// maxElement returns the size of the largest accepted element.
func (c *Consumer) maxElement() uint64 {
	if n := c.Options.GetMaxElementBytes(); n > 0 {
		return uint64(n)
	}
	return defaultMaxElementBytes
}

// RestartsStreams reports whether a stream restarts from its first index when its worker is lost. That is so
// for class C datasets, where an index does not identify an element, in modes that allow duplicates.
func (c *Consumer) RestartsStreams() bool { return restartsStreams(c.Plan, c.Options) }

// AbandonsStreams reports whether a stream ends when its worker is lost. That is so for class C datasets,
// where an index does not identify an element, in the mode that allows no duplicates.
func (c *Consumer) AbandonsStreams() bool {
	return c.Options.GetMode() == pecanv1.Mode_MODE_AT_MOST_ONCE && c.Plan.GetDeterminism() == pecanv1.DeterminismClass_DETERMINISM_CLASS_C
}

// warnOfCache logs why nothing can be cached, once for each job.
func (c *Consumer) warnOfCache(trouble string) {
	if !c.cacheWarned.Swap(true) {
		where := "cache"
		if c.Plan.GetCache() != nil {
			where = "pecan.cache()"
		}
		c.Link.Log().Warn(where+": "+trouble, "job", c.JobID)
	}
}

// noteCacheDecision logs a decision on which step is cached, once.
func (c *Consumer) noteCacheDecision(line string) {
	if line == "" {
		return
	}
	if before := c.cacheDecision.Swap(&line); before == nil || *before != line {
		c.Link.Log().Log(context.Background(), control.LevelNotice, "cache: "+line, "job", c.JobID)
	}
}

// RenewLease records that the dispatcher answered a call. The call began at began, and keeps this consumer
// for timeoutS seconds.
func (c *Consumer) RenewLease(began wait.Time, timeoutS float64) {
	c.known.Store(&leaseTerm{began, time.Duration(timeoutS * float64(time.Second))})
}

// LeaseHolds reports whether the queue of a shared job still belongs to this consumer. If the process or host was
// suspended, or the network failed, the dispatcher may have received nothing for the client timeout. Then the
// dispatcher may have given the streams to others. The term counts from before the call.
func (c *Consumer) LeaseHolds() bool {
	if !c.Shared() {
		return true
	}
	known := c.known.Load()
	return known == nil || known.limit <= 0 || known.since.Since() < known.limit
}

func restartsStreams(plan *pecanv1.Plan, options *pecanv1.JobOptions) bool {
	switch options.GetMode() {
	case pecanv1.Mode_MODE_AT_LEAST_ONCE, pecanv1.Mode_MODE_OFF:
		return plan.GetDeterminism() == pecanv1.DeterminismClass_DETERMINISM_CLASS_C
	}
	return false
}

// MayDiffer reports whether a pass may have more or fewer elements than the dataset when workers are lost.
func MayDiffer(plan *pecanv1.Plan, options *pecanv1.JobOptions) bool {
	return restartsStreams(plan, options) || options.GetMode() == pecanv1.Mode_MODE_AT_MOST_ONCE
}
