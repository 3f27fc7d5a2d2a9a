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

// defaultMaxElementBytes is the largest element that is accepted where the job does not say.
const defaultMaxElementBytes = 2 << 30

// Job is what an epoch asks of the job that it belongs to, and what it reports to it. Numbering and prefetching of passes, and the
// loss of the job, are the job's.
type Job interface {
	// NumberPass gives an epoch the number of its pass, when it is about to be opened.
	NumberPass(e *Epoch) uint64
	// CountPass counts the pass of an epoch that is open.
	CountPass(e *Epoch)
	// NoteOpened notes which number an epoch has at the dispatcher; begun: an iteration begins with it.
	NoteOpened(number uint64, begun bool)
	// Prefetch opens the next pass if that has not been done. It must not wait.
	Prefetch()
	// Expected is how many elements a pass of this client probably has; -1 when that is not known.
	Expected() int64
	// ClientUnknown is called when the dispatcher does not know this client.
	ClientUnknown(ctx context.Context, why *reason.Error)
	// Lose ends everything of a job that the dispatcher does not know any more.
	Lose(why string)
}

// Consumer is one client's part in a job, as all epochs of the job see it.
type Consumer struct {
	Link    *control.Link
	Workers *transport.Workers
	Pool    *buffer.Pool
	Job     Job

	// JobID and ClientID are the dispatcher's names; Request is what created the job.
	JobID    string
	ClientID string
	Request  *pecanv1.CreateJobRequest
	Plan     *pecanv1.Plan
	Options  *pecanv1.JobOptions

	// Heartbeats and Reports count what was sent: heartbeats, and reports of workers that could not be reached.
	Heartbeats, Reports atomic.Uint64
	// Leaving are the epochs that are closed here, of which the dispatcher is still to be told.
	Leaving Set

	// known is how long the dispatcher knows this consumer for certain.
	known atomic.Pointer[leaseTerm]
	// cacheWarned: what keeps pecan.cache() from its work was said.
	cacheWarned atomic.Bool
}

// leaseTerm is when a call began that showed that the dispatcher knows this consumer, and for how long it does so without another one.
type leaseTerm struct {
	since wait.Time
	limit time.Duration
}

// Shared is true when other trainers may take part.
func (c *Consumer) Shared() bool { return c.Request.GetJobName() != "" }

// maxElement is the largest element accepted.
func (c *Consumer) maxElement() uint64 {
	if n := c.Options.GetMaxElementBytes(); n > 0 {
		return uint64(n)
	}
	return defaultMaxElementBytes
}

// RestartsStreams tells whether a stream is taken again from where it began when its worker is lost: in modes that let elements come
// twice, where an index says nothing about which element it is.
func (c *Consumer) RestartsStreams() bool { return restartsStreams(c.Plan, c.Options) }

// AbandonsStreams tells whether nothing more is taken of a stream whose worker is lost: elements may not come twice, and an index says
// nothing about which element it is.
func (c *Consumer) AbandonsStreams() bool {
	return c.Options.GetMode() == pecanv1.Mode_MODE_AT_MOST_ONCE && c.Plan.GetDeterminism() == pecanv1.DeterminismClass_DETERMINISM_CLASS_C
}

// warnOfCache tells people, once for each job, that pecan.cache() does not do its work.
func (c *Consumer) warnOfCache(trouble string) {
	if !c.cacheWarned.Swap(true) {
		c.Link.Log().Warn("pecan.cache(): "+trouble, "job", c.JobID)
	}
}

// RenewLease notes that the dispatcher answered a call that began then and keeps this consumer alive, for so many seconds without
// another one.
func (c *Consumer) RenewLease(began wait.Time, timeoutS float64) {
	c.known.Store(&leaseTerm{began, time.Duration(timeoutS * float64(time.Second))})
}

// LeaseHolds tells whether what waits here of a shared job is still this consumer's. Where the dispatcher has heard nothing for its timeout,
// because the process or the host stood still or the network failed, it may have given all that to others. The time is counted from
// before the call.
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

// MayDiffer tells whether a pass may have more or fewer elements than the dataset when workers are lost.
func MayDiffer(plan *pecanv1.Plan, options *pecanv1.JobOptions) bool {
	return restartsStreams(plan, options) || options.GetMode() == pecanv1.Mode_MODE_AT_MOST_ONCE
}
