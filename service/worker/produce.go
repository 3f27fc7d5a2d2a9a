package worker

import (
	"errors"
	"time"

	"github.com/pecan-ml/pecan/native/tf"
	"github.com/pecan-ml/pecan/proto/reason"
)

// How small elements travel together. An element up to smallElement bytes shares a frame; a frame of them is about
// frameBytes, or what came within linger, or within hurry while a reader waits: short enough to be no latency that a
// trainer notices, long enough that a frame's own cost is spread over many elements.
const (
	smallElement = 16 << 10
	frameBytes   = 256 << 10
	frameRows    = 8192
	tableBytes   = 256 << 10
	linger       = 5 * time.Millisecond
	hurry        = 500 * time.Microsecond
)

// skipStep bounds how many elements are dropped between two looks at the window.
const skipStep = 4096

// How often one and the same error may come in a row: a source that cannot move on reports it for ever, which a missing
// file is known to do.
const (
	maxRepeats        = 1000
	maxMissingRepeats = 8
)

// errStopped ends a run that was told to stop.
var errStopped = errors.New("the stream was stopped")

// way is how the next elements are fetched.
type way int

const (
	oneByOne way = iota
	inColumns
	inPacks
)

// shapes is what a run has learned of its elements.
type shapes struct {
	way    way
	like   *tf.Block
	blocks pool[*tf.Block]
	packs  pool[*tf.Pack]
	specs  []tf.Shape
	// lastError and repeats count equal errors in a row.
	lastError string
	repeats   int
}

// produce fetches elements until the end (io.EOF), a failure of the stream, or its stop (errStopped).
func (r *run) produce(it *tf.Iterator) error {
	defer r.shapes.blocks.close()
	defer r.shapes.packs.close()
	defer func() {
		if r.shapes.like != nil {
			r.shapes.like.Free()
		}
	}()
	r.fill.it = it
	// A window fills in much less than a sample's period: while it does, the graph's own buffers are looked at more often.
	full := r.stream.worker.config.WindowBytes
	looked := int64(0)
	begun, next, saves := time.Now(), firstSample, r.saves()
	for {
		if looked < full {
			if made := r.window.madeSoFar(); made >= looked+full/32 {
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
		if !r.window.waitRoom(r.stream.worker.windowLimit, r.stream.worker.runs.Load, r.idle) {
			return errStopped
		}
		if r.window.isLeaving() {
			r.rest(it)
			return errStopped
		}
		if saves {
			r.maySave(it)
		}
		err := r.warily(it)
		if r.keeping != nil {
			r.keeping.tell()
		}
		switch failed := (*tf.Error)(nil); {
		case err == nil:
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

// warily is a step of which the dispatcher is told before, if that is wanted.
func (r *run) warily(it *tf.Iterator) error {
	if r.wary == nil {
		return r.step(it, frameRows)
	}
	defer r.wary.end()
	n := r.wary.begin(r.index())
	if r.ctx.Err() != nil {
		return errStopped
	}
	return r.step(it, n)
}

// idle is called when the run has to wait for room.
func (r *run) idle() {
	if r.wary != nil {
		r.wary.rest()
	}
}

// step fetches once: one element or a frame full of small ones, and no more than limit.
func (r *run) step(it *tf.Iterator, limit int) error {
	r.limit = limit
	if behind := r.skippable(); behind > 0 {
		n, err := it.Skip(int64(min(behind, skipStep, uint64(limit))))
		r.window.skipped(uint64(n))
		return err
	}
	switch r.shapes.way {
	case inColumns:
		return r.stepColumns(it)
	case inPacks:
		return r.stepPack(it)
	}
	element, err := it.Next()
	if err != nil {
		return err
	}
	r.accept(element)
	return nil
}

// skippable is how many elements can be run without looking at them. A short last batch must be looked at; it is none of
// those that the dispatcher knows to be with their consumer.
func (r *run) skippable() uint64 {
	behind := r.window.behind()
	if r.batchRows > 0 {
		next, owned := r.index(), r.order.GetDeliveredBelow()
		behind = min(behind, max(owned, next)-next)
	}
	return behind
}

// accept appends one element by itself, and learns from it how to fetch the next ones.
func (r *run) accept(element []*tf.Tensor) {
	if r.batchRows > 0 && rowsOf(element) < r.batchRows {
		r.keep(element)
		return
	}
	index := r.index()
	if failure := checkElement(index, element, r.order.GetComponents(), r.maxElement()); failure != nil {
		tf.ReleaseAll(element)
		r.fail(index, failure)
		return
	}
	r.shapes.repeats = 0
	r.learn(element)
	body := newSingle(element)
	r.give(newEntry(index, 1, int64(body.parts.raw), body))
}

func (r *run) maxElement() int64 {
	if limit := r.order.GetOptions().GetMaxElementBytes(); limit > 0 {
		return limit
	}
	return defaultMaxElement
}

// index is the index of the next element. Only this goroutine and the hand-over of a fill move it.
func (r *run) index() uint64 {
	next, _, _ := r.window.load()
	return next
}

// learn chooses how the elements after this one are fetched. Elements of one small fixed size go in columns until one
// differs; then, and for strings, they are packed one after the other.
func (r *run) learn(element []*tf.Tensor) {
	total, fixed := int64(0), true
	for _, t := range element {
		if len(t.Dims()) > tf.MaxShapeRank {
			r.shapes.way = oneByOne
			return
		}
		total += t.WireSize()
		fixed = fixed && t.DType() != tf.String
	}
	small := min(int64(smallElement), r.maxElement())
	switch {
	case total > small:
		// An element that is large for once does not end packing.
		if r.shapes.way == inColumns {
			r.shapes.way = oneByOne
		}
	case fixed && r.shapes.like == nil:
		rows := min(frameRows, frameBytes/int(max(total, 1)))
		if block, err := tf.NewBlock(element, rows); err == nil {
			r.shapes.like, r.shapes.way = block, inColumns
		}
	default:
		r.shapes.way, r.shapes.specs = inPacks, r.packShapes(len(element))
	}
}

func (r *run) packShapes(components int) []tf.Shape {
	list := make([]tf.Shape, components)
	for i := range list {
		list[i].Unknown = true
		if specs := r.order.GetComponents(); len(specs) == components && !specs[i].GetUnknownRank() && len(specs[i].GetDims()) <= tf.MaxShapeRank {
			list[i] = tf.Shape{Dims: append([]int64(nil), specs[i].GetDims()...)}
		}
	}
	if r.batchRows > 0 && len(list[0].Dims) > 0 {
		// A shorter batch must not be packed away with the others.
		list[0].Dims[0] = r.batchRows
	}
	return list
}

func (r *run) pace() tf.Pace {
	return tf.Pace{MaxRows: min(frameRows, r.limit), Linger: linger, Hurry: hurry}
}

func (r *run) stepColumns(it *tf.Iterator) error {
	like := r.shapes.like
	block := r.shapes.blocks.get(like.Clone)
	r.fill.begin(func(from, to int) {
		r.appendColumns(block, from, to, true)
	})
	rows, odd, err := it.FillBlock(block, r.pace())
	from := r.fill.end()
	if from == 0 && rows >= block.Cap/2 {
		r.appendColumns(block, 0, rows, false)
	} else {
		if rows > from {
			r.appendColumns(block, from, rows, true)
		}
		r.shapes.blocks.put(block)
	}
	if rows > 0 {
		r.shapes.repeats = 0
	}
	if odd != nil {
		r.accept(odd)
	}
	return err
}

// appendColumns appends rows [from, to) of a block: the block itself, or a copy that is no larger than what it holds.
func (r *run) appendColumns(block *tf.Block, from, to int, copied bool) {
	body := &columns{block: block, rows: to - from, home: &r.shapes.blocks}
	size := int64(0)
	if copied {
		body.own = make([][]byte, len(block.Columns))
	}
	for i := range block.Columns {
		if copied {
			body.own[i] = append([]byte(nil), block.Rows(i, from, to)...)
			size += int64(len(body.own[i]))
		} else {
			size += int64(block.Cap * block.Columns[i].Width)
		}
	}
	r.give(newEntry(r.index(), to-from, size, body))
}

func (r *run) stepPack(it *tf.Iterator) error {
	pack := r.shapes.packs.get(func() *tf.Pack { return tf.NewPack(frameBytes, tableBytes) })
	pack.Reset()
	components := it.Components()
	r.fill.begin(func(from, to int) {
		payload, table := pack.Memory()
		r.appendPack(&packed{payload: payload, table: table, components: components}, from, to)
	})
	rows, odd, err := it.FillPack(pack, r.shapes.specs, int(min(smallElement, r.maxElement())), r.pace())
	from := r.fill.end()
	if from == 0 && len(pack.Payload()) >= frameBytes/2 {
		body := &packed{payload: pack.Payload(), table: pack.Table(), components: components, pack: pack, home: &r.shapes.packs}
		r.give(newEntry(r.index(), rows, frameBytes+tableBytes, body))
	} else {
		if rows > from {
			r.appendPack(&packed{payload: pack.Payload(), table: pack.Table(), components: components}, from, rows)
		}
		r.shapes.packs.put(pack)
	}
	if rows > 0 {
		r.shapes.repeats = 0
	}
	if odd != nil {
		r.accept(odd)
	}
	return err
}

// appendPack appends a copy of elements [from, to) of a pack.
func (r *run) appendPack(whole *packed, from, to int) {
	body := whole.copy(from, to)
	r.give(newEntry(r.index(), to-from, int64(len(body.payload)+len(body.table)), body))
}

// fail appends an element that could not be made; false as of give.
func (r *run) fail(index uint64, failure *reason.Error) bool {
	r.failed.Add(1)
	return r.give(newFailure(index, failure))
}

// elementError appends the error of one element, or ends the stream when the same one comes again and again.
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
