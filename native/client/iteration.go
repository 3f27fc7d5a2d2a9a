package client

import (
	"sync"
	"time"

	"github.com/pecan-ml/pecan/native/client/epoch"
	"github.com/pecan-ml/pecan/native/client/resume"
	"github.com/pecan-ml/pecan/native/client/transport"
	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
)

// Iteration is what one iterator reads of a job: one epoch, or one for each repetition of the outer repeat that the
// plan removed from the graph. One caller at a time dequeues.
type Iteration struct {
	job     *Job
	options IterOptions
	// dequeuing is a lock. The caller that dequeues holds it.
	dequeuing chan struct{}
	closed    chan struct{}
	broken    error

	mu      sync.Mutex
	isShut  bool
	current *epoch.Epoch
	// pass is the current epoch as the resume log knows it. number identifies this iteration in the log.
	// passesDone counts completed passes.
	pass       *resume.Pass
	number     uint64
	passesDone uint64
	// previousEpoch is the number of the epoch before the current one.
	previousEpoch uint64
	// passesAfter counts the epochs after the current one; -1 means infinitely many.
	passesAfter int64
	// ended is set if the iteration has found its end, or endErr, the error that ended it.
	ended  bool
	endErr error
	// elements counts the elements of all epochs as assert_cardinality counts them: without failed ones.
	elements uint64
	// length is how many elements the iteration returns; negative if unknown.
	length int64
	// waitingSince is when the iteration began to keep the last element back.
	waitingSince time.Time
	stats        Stats
}

// Stats are counters of an iteration.
type Stats struct {
	// Elements and Bytes that were dequeued.
	Elements uint64
	Bytes    uint64
	// Failed elements, whose error was returned in their position.
	Failed uint64
	// Duplicates that arrived and were dropped.
	Duplicates uint64
	// Waited is the time that Next waited.
	Waited time.Duration
	// Reopened counts streams that were requested again.
	Reopened uint64
}

func (s *Stats) add(counters epoch.Counters) {
	s.Duplicates += counters.Duplicates
	s.Reopened += counters.Reopened
}

func newIteration(j *Job, options IterOptions) *Iteration {
	if options.MaxOutstandingBytes == 0 {
		options.MaxOutstandingBytes = defaultMaxOutstandingBytes
	}
	if options.Protocol == "" {
		options.Protocol = transport.Auto
	}
	if options.Timeout == 0 {
		options.Timeout = j.session.config.Timeout
	}
	if options.Compression == pecanv1.Compression_COMPRESSION_UNSPECIFIED {
		options.Compression = j.consumer.Options.GetCompression()
	}
	if j.consumer.Options.GetMode() == pecanv1.Mode_MODE_DETERMINISTIC {
		options.Deterministic = true
	}
	it := &Iteration{job: j, options: options, dequeuing: make(chan struct{}, 1), closed: make(chan struct{})}
	if options.Resume != nil {
		it.passesDone, it.elements = options.Resume.Passes, options.Resume.Elements
	}
	if options.log != nil {
		it.number = options.log.NewIteration()
	}
	it.passesAfter, it.length = it.passesLeft(), Cardinality(j.consumer.Plan, j.consumer.Options, j.consumer.Shared())
	// repeat(0): there is no pass.
	it.ended = j.consumer.Plan.GetRepeat() == 0
	return it
}

// epoch returns the epoch that is being read; nil when there is none.
func (it *Iteration) epoch() *epoch.Epoch {
	it.mu.Lock()
	defer it.mu.Unlock()
	if it.ended || it.isShut {
		return nil
	}
	return it.current
}

func (it *Iteration) waited(d time.Duration, starved bool) {
	it.mu.Lock()
	it.stats.Waited += d
	e := it.current
	it.mu.Unlock()
	if e != nil {
		e.AddWaited(d, starved)
	}
}

// Stats returns the iteration's counters.
func (it *Iteration) Stats() Stats {
	it.mu.Lock()
	defer it.mu.Unlock()
	stats := it.stats
	if it.current != nil {
		stats.add(it.current.Counters())
	}
	return stats
}

// Waiting says why no element is ready, for people. It returns "" if elements are ready or the iteration has ended.
// computing is true if workers compute the next element, so that nobody has to act.
func (it *Iteration) Waiting() (why string, computing bool) {
	if it.job.session.link.CheckFork() != nil || it.broken != nil {
		return "", false
	}
	if e := it.epoch(); e != nil {
		return e.Waiting()
	}
	return "", false
}

// Where returns the point after everything that was dequeued; nil before the first epoch is open.
func (it *Iteration) Where() *resume.Point {
	it.mu.Lock()
	defer it.mu.Unlock()
	if it.current == nil {
		return nil
	}
	position := it.current.Position()
	switch {
	case position != nil:
	case it.current.ResumeAt != nil:
		position = it.current.ResumeAt
	case it.passesDone > it.resumedPasses():
		// The previous epoch has ended and the current one is not open yet.
		position = it.current.Start()
		position.Epoch = it.previousEpoch + 1
	default:
		return nil
	}
	return &resume.Point{Position: position, Passes: it.passesDone, Elements: it.elements}
}

// handOverPoint returns the point of an iteration that has returned no element and no end, so that another
// iteration can begin there. It returns nil if none can. The epoch's number is unknown until the dispatcher
// has answered its opening.
func (it *Iteration) handOverPoint() *resume.Point {
	it.mu.Lock()
	defer it.mu.Unlock()
	ended := it.ended && it.endErr == nil
	if ended || it.stats.Elements+it.stats.Failed > 0 || it.passesDone > it.resumedPasses() || resume.CheckResumable(it.job.consumer) != nil {
		return nil
	}
	if it.options.Resume != nil {
		place := *it.options.Resume
		place.HandedOver = true
		return &place
	}
	if it.current == nil || it.current.Position() == nil {
		return nil
	}
	return &resume.Point{Position: &pecanv1.Position{Epoch: it.current.Number()}, HandedOver: true}
}

// resumedPasses is how many passes were complete when the iteration began.
func (it *Iteration) resumedPasses() uint64 {
	if it.options.Resume == nil {
		return 0
	}
	return it.options.Resume.Passes
}

// Close ends the iteration: a waiting Next returns, streams are closed, queued memory is released.
// Idempotent.
func (it *Iteration) Close() error {
	if err := it.job.session.link.CheckFork(); err != nil {
		return err
	}
	it.shut()
	return nil
}

func (it *Iteration) shut() {
	it.mu.Lock()
	if it.isShut {
		it.mu.Unlock()
		return
	}
	it.isShut = true
	if it.current != nil {
		it.retire()
	}
	it.mu.Unlock()
	close(it.closed)
	it.job.pace.Interrupt()
	it.job.remove(it)
}
