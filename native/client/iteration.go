package client

import (
	"fmt"
	"sync"
	"time"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/proto/reason"
)

// Iteration is one pass of an iterator over a job: one epoch, or as many as the plan took off the graph as an outer
// repeat. One consumer at a time takes from it; others wait for their turn.
type Iteration struct {
	job     *Job
	options IterOptions
	// turn is held by the consumer that takes.
	turn   chan struct{}
	closed chan struct{}
	broken error

	mu      sync.Mutex
	shutDo  bool
	current *epoch
	// pass is the current epoch for the positions; number is this iteration's among them, done how many passes are over.
	pass   *pass
	number uint64
	done   uint64
	// before is the number of the epoch before the current one.
	before uint64
	// left is how many epochs come after the current one; -1 for ever.
	left int64
	// over: the end, or the error that ended it, was found.
	over    bool
	overErr error
	// elements taken over all epochs, failed ones not counted, as assert_cardinality counts them.
	elements uint64
	// length is how many elements it gives; negative where that is not known.
	length int64
	// heldSince is from when on the last one waits until it is known to be that.
	heldSince time.Time
	stats     Stats
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

func (s *Stats) add(counters Counters) {
	s.Duplicates += counters.Duplicates
	s.Reopened += counters.Reopened
}

func newIteration(j *Job, options IterOptions) *Iteration {
	if options.MaxOutstandingBytes == 0 {
		options.MaxOutstandingBytes = DefaultMaxOutstandingBytes
	}
	if options.Protocol == "" {
		options.Protocol = Auto
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
	it := &Iteration{job: j, options: options, turn: make(chan struct{}, 1), closed: make(chan struct{})}
	if options.Resume != nil {
		it.done, it.elements = options.Resume.Passes, options.Resume.Elements
	}
	if options.positions != nil {
		it.number = options.positions.iteration()
	}
	it.left, it.length = it.passesLeft(), Cardinality(j.consumer.Plan, j.consumer.Options, j.consumer.shared())
	// repeat(0): no pass at all.
	it.over = j.consumer.Plan.GetRepeat() == 0
	return it
}

// passesLeft is how many passes come after the current one; -1 for ever.
func (it *Iteration) passesLeft() int64 {
	repeat := it.job.consumer.Plan.GetRepeat()
	if repeat < 0 {
		return -1
	}
	return max(0, repeat-1-int64(it.done))
}

// NextElement takes one element, waiting for it at most as long as told. Ready comes with rows of Count 1, whose
// tensors have the element's own shape; Failed with an error, after which the iteration may be asked again: an element
// that failed is left out, and an outage (the dispatcher away, no worker there, none that can be reached) may be over;
// Broken with the error by which the iteration is over.
func (it *Iteration) NextElement(wait time.Duration) (*Rows, Status, error) {
	return it.next(wait, 1, false)
}

// NextBlock takes up to max elements of one shape, each tensor with a leading dimension of their number. Elements that
// travelled together come without a copy.
func (it *Iteration) NextBlock(max int, wait time.Duration) (*Rows, Status, error) {
	if max < 1 {
		return nil, Failed, reason.New(reason.BadArgument, "next block of %d rows: ask for at least one", max)
	}
	return it.next(wait, max, true)
}

func (it *Iteration) next(wait time.Duration, max int, lead bool) (*Rows, Status, error) {
	if err := it.job.session.link.checkFork(); err != nil {
		return nil, Broken, err
	}
	if it.broken != nil {
		return nil, Broken, it.broken
	}
	// The fast path has no timer: most calls find rows.
	select {
	case it.turn <- struct{}{}:
		rows, status, err := it.inTurn(max, lead)
		if status != NotYet || wait <= 0 {
			return rows, status, err
		}
	default:
	}
	return it.await(wait, max, lead)
}

// inTurn tries once, and gives the turn back.
func (it *Iteration) inTurn(max int, lead bool) (*Rows, Status, error) {
	defer func() { <-it.turn }()
	rows, status, _, err := it.try(max, lead)
	return rows, status, err
}

func (it *Iteration) await(wait time.Duration, max int, lead bool) (*Rows, Status, error) {
	began := time.Now()
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case it.turn <- struct{}{}:
		defer func() { <-it.turn }()
	case <-timer.C:
		return nil, NotYet, nil
	}
	for {
		rows, status, e, err := it.try(max, lead)
		if status != NotYet {
			it.waited(time.Since(began), false)
			return rows, status, err
		}
		e.setStarved(true)
		select {
		case <-e.notify:
		case <-it.closed:
		case <-timer.C:
			it.waited(time.Since(began), true)
			if err := e.outage(time.Now(), it.options.Timeout); err != nil {
				return nil, Failed, err
			}
			return nil, NotYet, nil
		}
	}
}

// try takes what is there. With NotYet it gives the epoch to wait for.
func (it *Iteration) try(max int, lead bool) (*Rows, Status, *epoch, error) {
	it.mu.Lock()
	defer it.mu.Unlock()
	for {
		switch {
		case it.shutDo:
			return nil, Broken, nil, reason.New(reason.Closed, "the iteration is closed")
		case it.over && it.overErr != nil:
			return nil, Broken, nil, it.overErr
		case it.over:
			if it.options.positions != nil && it.pass != nil {
				it.options.positions.ended(it.pass)
			}
			return nil, End, nil, nil
		}
		e := it.current
		n := it.beforeLast(max)
		if n == 0 {
			last := e.next()
			if it.holds(last) {
				return nil, NotYet, e, nil
			}
			if err := it.tooMany(2); last == standsBefore && err != nil {
				it.finish(err)
				return nil, Broken, nil, err
			}
			n = 1
		}
		rows, found, err := e.take(n, lead)
		switch found {
		case foundRows:
			if it.options.positions != nil {
				it.options.positions.delivered(it.pass, rows, false)
			}
			it.count(rows)
			if err := it.tooMany(0); err != nil {
				rows.Release()
				it.finish(err)
				return nil, Broken, nil, err
			}
			return rows, Ready, nil, nil
		case foundFailure:
			if it.options.positions != nil {
				it.options.positions.delivered(it.pass, rows, true)
			}
			it.stats.Failed++
			return nil, Failed, nil, err
		case foundBroken:
			it.finish(err)
			return nil, Broken, nil, err
		case foundNothing:
			return nil, NotYet, e, nil
		case foundEnd:
			it.advance()
		}
	}
}

func (it *Iteration) count(rows *Rows) {
	it.elements += uint64(rows.Count)
	it.stats.Elements += uint64(rows.Count)
	for i := range rows.Tensors {
		it.stats.Bytes += uint64(len(rows.Tensors[i].Data) + len(rows.Tensors[i].Lengths))
	}
}

// advance goes from an epoch that ended to the next one, or to the end. it.mu is held.
func (it *Iteration) advance() {
	// The rest of a pass says nothing about the length of the next one.
	resumed := len(it.current.start.GetNext()) > 0
	endless := it.left < 0 && it.alone() && it.current.empty() && !resumed
	if taken := it.retire(); !resumed {
		it.job.finished(taken)
	}
	switch {
	case it.left == 0 && it.noRest() && it.tooFew() == nil:
		// TensorFlow's repeat() would take an empty first pass for the end of everything.
		if given := len(it.current.start.GetEnded()) - len(it.options.Resume.Position.GetEnded()); given > 0 {
			it.job.session.link.Log().Warn(fmt.Sprintf("nothing is left of epoch %d, since all that was to come of it is given up: the next one begins",
				it.current.number()), "job", it.job.consumer.JobID)
		}
		it.options.Resume, it.done, it.elements = nil, 0, 0
		it.left = it.passesLeft()
	case it.left == 0 || endless:
		// Repeating nothing for ever is nothing, as it is locally.
		it.finish(it.tooFew())
		return
	default:
		it.left = max(-1, it.left-1)
		it.done++
	}
	it.before = it.current.number()
	it.job.mu.Lock()
	if it.job.closed || it.job.lost != nil {
		err := it.job.lost
		it.job.mu.Unlock()
		if err == nil {
			err = reason.New(reason.Closed, "job %s is closed", it.job.consumer.JobID)
		}
		it.finish(err)
		return
	}
	it.current = it.job.nextEpoch()
	it.job.mu.Unlock()
	it.pass = it.newPass()
	it.current.activate(it.epochOptions())
}

// noRest tells that the iteration began where a training loop had stopped, and that it had stopped at the end of a pass.
func (it *Iteration) noRest() bool {
	resume := it.options.Resume
	return resume != nil && resume.fresh && len(resume.Position.GetNext()) > 0 && it.stats.Elements+it.stats.Failed == 0
}

// newPass is the current epoch as positions know it.
func (it *Iteration) newPass() *pass {
	// An epoch that begins at a number without being gone on in is like any other.
	left := it.current.start != nil && (it.options.Resume == nil || it.options.Resume.left)
	return &pass{epoch: it.current, iteration: it.number, done: it.done, elements: it.elements, left: left}
}

// epochOptions are the options for the current epoch. The next one is opened ahead of need unless
//   - a cache or a snapshot writes files: the next epoch would find those of this one half written or locked, and one that
//     nobody comes to read would keep its own locked;
//   - a cache keeps what passes a step: it is whole at the end of this epoch, and the next one would begin without it;
//   - this is the last pass of a repeat(n) that was taken off the graph: whoever says how many passes there are has had them.
//
// Whether another pass follows the only one of a plan is known to nobody: a repeat() behind distribute(), or another `for`,
// asks for it when this one is over. It is opened, since a pass that is never read costs one element on each worker, and one
// that is opened when it is asked for costs the trainer a wait.
func (it *Iteration) epochOptions() EpochOptions {
	plan := it.job.consumer.Plan
	options := EpochOptions{
		MaxOutstandingBytes: it.options.MaxOutstandingBytes, Compression: it.options.Compression, Protocol: it.options.Protocol,
		Deterministic: it.options.Deterministic, NoAhead: it.options.NoAhead,
	}
	if plan.GetWritesFiles() || plan.GetCache() != nil || plan.GetRepeat() > 1 && it.left == 0 {
		options.NoAhead = true
	}
	return options
}

// retire closes the current epoch, takes over its counters, and tells how many of its elements were taken. it.mu is held.
func (it *Iteration) retire() (taken uint64) {
	taken, counters := it.current.retire()
	it.stats.add(counters)
	return taken
}

// finish ends the iteration with an error or without. it.mu is held.
func (it *Iteration) finish(err error) {
	it.over, it.overErr = true, err
	it.retire()
	it.job.leave(it)
}

// alone is true when this iteration gets all of a pass.
func (it *Iteration) alone() bool {
	return !it.job.consumer.shared() && it.job.consumer.Options.GetMode() != pecanv1.Mode_MODE_OFF
}

// epoch is the one that is being read; nil when there is none.
func (it *Iteration) epoch() *epoch {
	it.mu.Lock()
	defer it.mu.Unlock()
	if it.over || it.shutDo {
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
		e.addWaited(d, starved)
	}
}

// Stats tells how the iteration is doing.
func (it *Iteration) Stats() Stats {
	it.mu.Lock()
	defer it.mu.Unlock()
	stats := it.stats
	if it.current != nil {
		stats.add(it.current.counters())
	}
	return stats
}

// Waiting says, for people, why nothing comes; empty when elements are ready or the iteration is over. computing: workers
// are at it and only take their time, so that nobody has to do anything about it.
func (it *Iteration) Waiting() (why string, computing bool) {
	if it.job.session.link.checkFork() != nil || it.broken != nil {
		return "", false
	}
	if e := it.epoch(); e != nil {
		return e.why()
	}
	return "", false
}

// Where tells what is needed to go on behind everything that was taken; nil before the first epoch is open.
func (it *Iteration) Where() *Resume {
	it.mu.Lock()
	defer it.mu.Unlock()
	if it.current == nil {
		return nil
	}
	position := it.current.position()
	switch {
	case position != nil:
	case it.current.start != nil:
		position = it.current.start
	case it.done > it.begun():
		// The epoch before is over and this one is not open yet.
		position = &pecanv1.Position{Epoch: it.before + 1}
	default:
		return nil
	}
	return &Resume{Position: position, Passes: it.done, Elements: it.elements}
}

// unused is the place of an iteration that is left before it has handed out anything, its end neither; nil where another one cannot
// begin there. Without an answer of the dispatcher to the opening of an epoch its number is not known.
func (it *Iteration) unused() *Resume {
	it.mu.Lock()
	defer it.mu.Unlock()
	ended := it.over && it.overErr == nil
	if ended || it.stats.Elements+it.stats.Failed > 0 || it.done > it.begun() || resumable(it.job.consumer) != nil {
		return nil
	}
	if it.options.Resume != nil {
		place := *it.options.Resume
		place.left = true
		return &place
	}
	if it.current == nil || it.current.position() == nil {
		return nil
	}
	return &Resume{Position: &pecanv1.Position{Epoch: it.current.number()}, left: true}
}

// begun is how many passes were over when the iteration began.
func (it *Iteration) begun() uint64 {
	if it.options.Resume == nil {
		return 0
	}
	return it.options.Resume.Passes
}

// Close ends the iteration: a Next that waits returns, the streams are closed, memory that was not taken goes back.
// Idempotent.
func (it *Iteration) Close() error {
	if err := it.job.session.link.checkFork(); err != nil {
		return err
	}
	it.shut()
	return nil
}

func (it *Iteration) shut() {
	it.mu.Lock()
	if it.shutDo {
		it.mu.Unlock()
		return
	}
	it.shutDo = true
	if it.current != nil {
		it.retire()
	}
	it.mu.Unlock()
	close(it.closed)
	it.job.leave(it)
}
