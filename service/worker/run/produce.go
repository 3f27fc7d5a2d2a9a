package run

import (
	"errors"
	"time"

	"github.com/pecan-ml/pecan/native/tf"
	"github.com/pecan-ml/pecan/proto/reason"
	"github.com/pecan-ml/pecan/service/worker/payload"
	"github.com/pecan-ml/pecan/service/worker/window"
)

// These bounds decide how small elements share window entries. An element of up to smallElement bytes shares an
// entry. An entry holds about entryBytes, or what came within linger, or within hurry while a reader waits. The
// times are short enough for a trainer not to notice, and long enough to spread an entry's cost over many
// elements.
const (
	smallElement  = 16 << 10
	entryBytes    = 256 << 10
	entryElements = 8192
	tableBytes    = 256 << 10
	linger        = 5 * time.Millisecond
	hurry         = 500 * time.Microsecond
)

// mostSkipped bounds how many elements are skipped between two looks at the window.
const mostSkipped = 4096

// These are the limits for one error in a row. A source that cannot advance reports its error forever, as a
// missing file does.
const (
	maxRepeats        = 1000
	maxMissingRepeats = 8
)

// lastEarlySample is after how many elements the last early sample of a pooled stream comes.
const lastEarlySample = 256

// errStopped ends a run that was stopped.
var errStopped = errors.New("the stream was stopped")

const (
	oneByOne grouping = iota
	inColumns
	inPacks
)

// produce fetches elements until the end (io.EOF), a failure of the stream, or its stop (errStopped). It also ends when the
// first element in a pooled iterator fails (errOwnIterator).
func (r *run) produce(it *tf.Iterator) error {
	defer r.shapes.blocks.Close()
	defer r.shapes.packs.Close()
	defer func() {
		if r.shapes.like != nil {
			r.shapes.like.Free()
		}
	}()
	r.fill.it = it
	// A window fills in much less than a sample period. While it fills, the graph's own buffers are sampled more
	// often.
	full := r.stream.streams.Options.WindowBytes
	looked := int64(0)
	begun, next, saves := time.Now(), firstSample, r.saves()
	// A pooled stream may end before its first sample. Some of them are sampled after 1, 2, 4 and so on elements. The first
	// element alone often takes many times as long as the others.
	first, early := r.index(), uint64(0)
	if len(r.pooled) > 0 && r.pooled[0].streams&(r.pooled[0].streams-1) == 0 {
		early = 1
	}
	for {
		if looked < full {
			if made := r.window.Produced(); made >= looked+full/32 {
				r.sample()
				looked = made
			}
		}
		if next < samplePeriod {
			if since := time.Since(begun); since > next {
				r.sample()
				next = since * 3 / 2
			}
		}
		if !r.window.WaitRoom(r.stream.streams.WindowLimit, r.stream.streams.runs.Load, r.idle) {
			return errStopped
		}
		if r.window.ProductionStopped() {
			r.saveAndAwaitStop(it)
			return errStopped
		}
		if saves {
			r.maySave(it)
		}
		asked := time.Now()
		err := r.guardedFetch(it)
		r.computing += time.Since(asked)
		if r.cached != nil {
			r.cached.Report()
		}
		switch failed := (*tf.Error)(nil); {
		case err == nil && early > 0 && r.index()-first >= early:
			r.sample()
			if early = 2 * (r.index() - first); early > lastEarlySample {
				early = 0
			}
		case err == nil:
		case errors.As(err, &failed) && r.beginsPooled():
			return errOwnIterator
		case errors.As(err, &failed):
			if err := r.elementError(failed); err != nil {
				return err
			}
		case errors.Is(err, tf.ErrCancelled):
			return errStopped
		default:
			return err
		}
	}
}

// guardedFetch is a fetch that the crash guard, if there is one, marks first.
func (r *run) guardedFetch(it *tf.Iterator) error {
	if r.beginsPooled() {
		if r.acquireOpeningLock() != nil {
			return errStopped
		}
		defer r.releaseOpeningLock()
	}
	if r.guard == nil {
		return r.fetch(it, entryElements)
	}
	defer r.guard.end()
	n := r.guard.begin(r.index())
	if r.ctx.Err() != nil {
		return errStopped
	}
	return r.fetch(it, n)
}

// idle is called when the run has to wait for room.
func (r *run) idle() {
	if r.guard != nil {
		r.guard.idle()
	}
}

// fetch fetches once: one element or an entry of small elements, and at most limit.
func (r *run) fetch(it *tf.Iterator, limit int) error {
	r.limit = limit
	if skippable := r.skippable(); skippable > 0 {
		n, err := it.Skip(int64(min(skippable, mostSkipped, uint64(limit))))
		r.window.Skip(uint64(n))
		return err
	}
	switch r.shapes.grouping {
	case inColumns:
		return r.fetchColumns(it)
	case inPacks:
		return r.fetchPack(it)
	}
	element, err := it.Next()
	if err != nil {
		return err
	}
	r.accept(element)
	return nil
}

// skippable is how many elements can be run without looking at them. A short last batch must be looked at. It is
// never among the elements that the dispatcher knows to be delivered.
func (r *run) skippable() uint64 {
	skippable := r.window.Skippable()
	if r.batchRows > 0 {
		next, owned := r.index(), r.command.GetDeliveredBelow()
		skippable = min(skippable, max(owned, next)-next)
	}
	return skippable
}

// accept appends one element as its own entry, and learns from it how to fetch the next ones.
func (r *run) accept(element []*tf.Tensor) {
	if r.batchRows > 0 && payload.Rows(element) < r.batchRows {
		r.keepRemainder(element)
		return
	}
	index := r.index()
	if failure := checkElement(index, element, r.command.GetComponents(), r.maxElement()); failure != nil {
		tf.ReleaseAll(element)
		r.fail(index, failure)
		return
	}
	r.shapes.repeats = 0
	r.learn(element)
	body := payload.NewSingle(element)
	r.deliver(window.NewEntry(index, 1, int64(body.Parts.Raw), body))
}

// defaultMaxElement is the largest element if the job sets no limit.
const defaultMaxElement = 2 << 30

func (r *run) maxElement() int64 {
	if limit := r.command.GetOptions().GetMaxElementBytes(); limit > 0 {
		return limit
	}
	return defaultMaxElement
}

// index is the index of the next element. Only this goroutine and the partial hand-over change it.
func (r *run) index() uint64 {
	next, _, _ := r.window.Load()
	return next
}

// fail appends an element that could not be produced. It returns what deliver returns. The dispatcher learns of the first one before
// readers do as a rule, because they may end the job. A missing file, and an error of a service, say nothing of the order of the steps.
func (r *run) fail(index uint64, failure *reason.Error) bool {
	if failure.Reason != reason.FileNotVisible && !transient(failure.Code()) && r.failures.Add(1) == 1 {
		r.stream.streams.Totals.Changed(r)
		r.stream.streams.reportJob(r.stream.key.Job)
	}
	return r.deliver(window.NewFailure(index, failure))
}

// elementError appends the error of one element. It ends the stream if the same error repeats too often.
func (r *run) elementError(err *tf.Error) error {
	index := r.index()
	failure := r.elementFailure(index, err)
	if r.shapes.repeats == 0 || r.shapes.lastError != err.Message {
		r.shapes.lastError, r.shapes.repeats = err.Message, 0
	}
	limit := maxRepeats
	if failure.Reason == reason.FileNotVisible {
		limit = maxMissingRepeats
	}
	if r.shapes.repeats++; r.shapes.repeats >= limit {
		return failure
	}
	if !r.fail(index, failure) {
		return errStopped
	}
	return nil
}
