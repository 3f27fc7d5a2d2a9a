package client

import (
	"sync"
	"time"

	"github.com/pecan-ml/pecan/native/client/epoch"
	"github.com/pecan-ml/pecan/native/client/resume"
	"github.com/pecan-ml/pecan/native/client/transport"
	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
)

// Iteration is one pass of an iterator over a job: one epoch, or as many as the plan took off the graph as an outer
// repeat. One consumer at a time takes from it; others wait for their turn.
type Iteration struct {
	job     *Job
	options IterOptions
	// turn is held by the consumer that takes.
	token  chan struct{}
	closed chan struct{}
	broken error

	mu      sync.Mutex
	isShut  bool
	current *epoch.Epoch
	// pass is the current epoch for the positions; number is this iteration's among them, done how many passes are over.
	pass       *resume.Pass
	number     uint64
	passesDone uint64
	// before is the number of the epoch before the current one.
	previousEpoch uint64
	// left is how many epochs come after the current one; -1 for ever.
	passesAfter int64
	// over: the end, or the error that ended it, was found.
	ended  bool
	endErr error
	// elements taken over all epochs, failed ones not counted, as assert_cardinality counts them.
	elements uint64
	// length is how many elements it gives; negative where that is not known.
	length int64
	// heldSince is from when on the last one waits until it is known to be that.
	holdingSince time.Time
	stats        Stats
}

// Stats tells how an iteration is doing.
type Stats struct {
	// Elements and Bytes that were taken.
	Elements uint64
	Bytes    uint64
	// Failed elements, whose error was handed out in their place.
	Failed uint64
	// Duplicates that came and were dropped.
	Duplicates uint64
	// Waited is the time that Next waited.
	Waited time.Duration
	// Reopened counts streams that had to be asked for again.
	Reopened uint64
}

func (s *Stats) add(counters epoch.Counters) {
	s.Duplicates += counters.Duplicates
	s.Reopened += counters.Reopened
}

func newIteration(j *Job, options IterOptions) *Iteration {
	if options.MaxOutstandingBytes == 0 {
		options.MaxOutstandingBytes = DefaultMaxOutstandingBytes
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
	it := &Iteration{job: j, options: options, token: make(chan struct{}, 1), closed: make(chan struct{})}
	if options.Resume != nil {
		it.passesDone, it.elements = options.Resume.Passes, options.Resume.Elements
	}
	if options.log != nil {
		it.number = options.log.NewIteration()
	}
	it.passesAfter, it.length = it.passesLeft(), Cardinality(j.consumer.Plan, j.consumer.Options, j.consumer.Shared())
	// repeat(0): no pass at all.
	it.ended = j.consumer.Plan.GetRepeat() == 0
	return it
}

// epoch is the one that is being read; nil when there is none.
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

// Stats tells how the iteration is doing.
func (it *Iteration) Stats() Stats {
	it.mu.Lock()
	defer it.mu.Unlock()
	stats := it.stats
	if it.current != nil {
		stats.add(it.current.Counters())
	}
	return stats
}

// Waiting says, for people, why nothing comes; empty when elements are ready or the iteration is over. computing: workers
// are at it and only take their time, so that nobody has to do anything about it.
func (it *Iteration) Waiting() (why string, computing bool) {
	if it.job.session.link.CheckFork() != nil || it.broken != nil {
		return "", false
	}
	if e := it.epoch(); e != nil {
		return e.Waiting()
	}
	return "", false
}

// Where tells what is needed to go on behind everything that was taken; nil before the first epoch is open.
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
		// The epoch before is over and this one is not open yet.
		position = &pecanv1.Position{Epoch: it.previousEpoch + 1}
	default:
		return nil
	}
	return &resume.Point{Position: position, Passes: it.passesDone, Elements: it.elements}
}

// HandOverPoint is the place of an iteration that is left before it has handed out anything, its end neither; nil where another one cannot
// begin there. Without an answer of the dispatcher to the opening of an epoch its number is not known.
func (it *Iteration) HandOverPoint() *resume.Point {
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

// resumedPasses is how many passes were over when the iteration began.
func (it *Iteration) resumedPasses() uint64 {
	if it.options.Resume == nil {
		return 0
	}
	return it.options.Resume.Passes
}

// Close ends the iteration: a Next that waits returns, the streams are closed, memory that was not taken goes back.
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
	it.job.remove(it)
}
