package run

import (
	"sync"
	"time"

	"github.com/pecan-ml/pecan/native/tf"
	"github.com/pecan-ml/pecan/service/worker/payload"
	"github.com/pecan-ml/pecan/service/worker/window"
)

// grouping is how the next elements are put into window entries.
type grouping int

// shapes is what a run has learned about its elements.
type shapes struct {
	grouping grouping
	like     *tf.Block
	blocks   payload.Pool[*tf.Block]
	packs    payload.Pool[*tf.Pack]
	specs    []tf.Shape
	// lastError and repeats count equal errors in a row.
	lastError string
	repeats   int
}

// learn chooses how the elements after this one are fetched. Elements of one small fixed size are laid out in
// columns until one differs. After that, and for strings, they are packed one after the other.
func (r *run) learn(element []*tf.Tensor) {
	total, fixed := int64(0), true
	for _, t := range element {
		if len(t.Dims()) > tf.MaxShapeRank {
			r.shapes.grouping = oneByOne
			return
		}
		total += t.WireSize()
		fixed = fixed && t.DType() != tf.String
	}
	small := min(int64(smallElement), r.maxElement())
	switch {
	case total > small:
		// One large element does not end packing.
		if r.shapes.grouping == inColumns {
			r.shapes.grouping = oneByOne
		}
	case fixed && r.shapes.like == nil:
		rows := min(entryElements, entryBytes/int(max(total, 1)))
		if block, err := tf.NewBlock(element, rows); err == nil {
			r.shapes.like, r.shapes.grouping = block, inColumns
		}
	default:
		r.shapes.grouping, r.shapes.specs = inPacks, r.packShapes(len(element))
	}
}

func (r *run) packShapes(components int) []tf.Shape {
	list := make([]tf.Shape, components)
	for i := range list {
		list[i].Unknown = true
		if specs := r.command.GetComponents(); len(specs) == components && !specs[i].GetUnknownRank() && len(specs[i].GetDims()) <= tf.MaxShapeRank {
			list[i] = tf.Shape{Dims: append([]int64(nil), specs[i].GetDims()...)}
		}
	}
	if r.batchRows > 0 && len(list[0].Dims) > 0 {
		// A shorter batch must not be packed together with the others.
		list[0].Dims[0] = r.batchRows
	}
	return list
}

func (r *run) pace() tf.Pace {
	return tf.Pace{MaxElements: min(entryElements, r.limit), Linger: linger, Hurry: hurry}
}

func (r *run) fetchColumns(it *tf.Iterator) error {
	like := r.shapes.like
	block := r.shapes.blocks.Get(like.Clone)
	r.fill.begin(func(from, to int) {
		r.appendColumns(block, from, to, true)
	})
	count, odd, err := it.FillBlock(block, r.pace())
	from := r.fill.end()
	if from == 0 && count >= block.Cap/2 {
		r.appendColumns(block, 0, count, false)
	} else {
		if count > from {
			r.appendColumns(block, from, count, true)
		}
		r.shapes.blocks.Put(block)
	}
	return r.filled(count, odd, err)
}

// appendColumns appends elements [from, to) of a block. It appends the block itself, or a copy of just these
// elements.
func (r *run) appendColumns(block *tf.Block, from, to int, copied bool) {
	body := &payload.Columns{Block: block, Count: to - from, Home: &r.shapes.blocks}
	size := int64(0)
	if copied {
		body.Own = make([][]byte, len(block.Columns))
	}
	for i := range block.Columns {
		if copied {
			body.Own[i] = append([]byte(nil), block.Rows(i, from, to)...)
			size += int64(len(body.Own[i]))
		} else {
			size += int64(block.Cap * block.Columns[i].Width)
		}
	}
	r.deliver(window.NewEntry(r.index(), to-from, size, body))
}

func (r *run) fetchPack(it *tf.Iterator) error {
	pack := r.shapes.packs.Get(func() *tf.Pack { return tf.NewPack(entryBytes, tableBytes) })
	pack.Reset()
	components := it.Components()
	r.fill.begin(func(from, to int) {
		data, table := pack.Memory()
		r.appendPack(&payload.Packed{Payload: data, Table: table, Components: components}, from, to)
	})
	count, odd, err := it.FillPack(pack, r.shapes.specs, int(min(smallElement, r.maxElement())), r.pace())
	from := r.fill.end()
	if from == 0 && len(pack.Payload()) >= entryBytes/2 {
		body := &payload.Packed{Payload: pack.Payload(), Table: pack.Table(), Components: components, Pack: pack, Home: &r.shapes.packs}
		r.deliver(window.NewEntry(r.index(), count, entryBytes+tableBytes, body))
	} else {
		if count > from {
			r.appendPack(&payload.Packed{Payload: pack.Payload(), Table: pack.Table(), Components: components}, from, count)
		}
		r.shapes.packs.Put(pack)
	}
	return r.filled(count, odd, err)
}

// appendPack appends a copy of elements [from, to) of a pack.
func (r *run) appendPack(whole *payload.Packed, from, to int) {
	body := whole.Copy(from, to)
	r.deliver(window.NewEntry(r.index(), to-from, int64(len(body.Payload)+len(body.Table)), body))
}

// filled ends a fetch of count elements. odd is the element that did not fit the others, if there was one.
func (r *run) filled(count int, odd []*tf.Tensor, err error) error {
	if count > 0 {
		r.shapes.repeats = 0
	}
	if odd != nil {
		r.accept(odd)
	}
	return err
}

// These are the intervals at which the elements of a waiting fill are polled.
const (
	firstPoll = linger
	lastPoll  = 50 * time.Millisecond
)

// handover delivers the elements of a fill while the fill waits for its next element. Without it, a ready element
// would wait for as long as TensorFlow takes for the next one.
type handover struct {
	it *tf.Iterator

	mu     sync.Mutex
	flush  func(from, to int)
	taken  int
	pause  time.Duration
	timer  *time.Timer
	active bool
}

// begin is called before a fill; flush appends a copy of elements [from, to).
func (h *handover) begin(cut func(from, to int)) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.flush, h.taken, h.pause, h.active = cut, 0, firstPoll, true
	if h.timer == nil {
		h.timer = time.AfterFunc(h.pause, h.poll)
	} else {
		h.timer.Reset(h.pause)
	}
}

// end is called after a fill. It returns how many elements were handed over.
func (h *handover) end() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.active = false
	h.timer.Stop()
	return h.taken
}

func (h *handover) poll() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.active {
		return
	}
	if count := h.it.Progress(); count > h.taken {
		h.flush(h.taken, count)
		h.taken, h.pause = count, firstPoll
	} else {
		h.pause = min(2*h.pause, lastPoll)
	}
	h.timer.Reset(h.pause)
}
