package client

import (
	"slices"
	"time"

	"github.com/pecan-ml/pecan/proto/frame"
	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/proto/reason"
)

const (
	// Rows of at most gatherRow bytes are copied together from several frames when a block is asked for: what a call
	// costs is more than what the copy costs. A gathered block has at most gatherBytes.
	gatherRow   = 8 << 10
	gatherBytes = 1 << 20
)

// found is what an epoch has for its consumer.
type found int

const (
	foundNothing found = iota
	foundRows
	// foundFailure is an element that failed: the next one may be asked for.
	foundFailure
	// foundBroken ends the epoch with an error.
	foundBroken
	foundEnd
)

// take gives up to max rows that are ready, or which rows failed. It never waits.
func (e *epoch) take(max int, lead bool) (*Rows, found, error) {
	pieces, found, err := e.takePieces(max, lead)
	if found == foundFailure {
		return pieces[0], found, err
	}
	if found != foundRows {
		return nil, found, err
	}
	rows := pieces[0]
	if len(pieces) > 1 {
		rows.pieces = make([]piece, len(pieces))
		for i, p := range pieces {
			rows.pieces[i] = piece{stream: p.Stream, first: p.Index, rows: uint64(p.Count)}
		}
		if rows, err = gather(e.consumer.Pool, pieces); err != nil {
			return nil, foundBroken, err
		}
	}
	return rows, foundRows, nil
}

func (e *epoch) takePieces(max int, lead bool) ([]*Rows, found, error) {
	// A worker on the same host that changes what is in shared memory can have this panic, and nobody could be told if the lock stayed held.
	e.mu.Lock()
	defer e.mu.Unlock()
	first, found, err := e.takeFrom(e.pick(), max, lead)
	if found == foundFailure {
		return []*Rows{first}, found, err
	}
	if found != foundRows {
		return nil, found, err
	}
	e.starved, e.stranded = false, time.Time{}
	pieces := []*Rows{first}
	if !lead || first.Count >= (max+1)/2 || size(first) > gatherRow*first.Count {
		return pieces, foundRows, nil
	}
	rows, bytes := first.Count, size(first)
	for rows < max && bytes < gatherBytes {
		st := e.pick()
		if st == nil || !st.queue[0].joins(first) {
			break
		}
		piece, found, _ := e.takeFrom(st, max-rows, lead)
		if found != foundRows {
			break
		}
		pieces = append(pieces, piece)
		rows += piece.Count
		bytes += size(piece)
	}
	return pieces, foundRows, nil
}

// takeFrom takes from the head of a stream's queue, or says why there is nothing when st is nil. e.mu is held.
func (e *epoch) takeFrom(st *stream, max int, lead bool) (*Rows, found, error) {
	switch {
	case e.disowned && e.err == nil:
		return nil, foundNothing, nil
	case e.disowned:
		return nil, foundBroken, e.err
	case st != nil && !e.consumer.holds():
		// Nothing is handed out before the dispatcher has answered.
		e.link.RequestHeartbeat()
		return nil, foundNothing, nil
	case st != nil:
	case e.received() && e.drained():
		return nil, foundEnd, nil
	case e.err != nil:
		return nil, foundBroken, e.err
	case e.closed:
		return nil, foundBroken, reason.New(reason.Closed, "the epoch is closed")
	default:
		return nil, foundNothing, nil
	}
	e.advance(st)
	head := &st.queue[0]
	if err := head.err; err != nil {
		failed := &Rows{Epoch: e.id, Stream: st.number, Index: head.index(), Count: 1}
		st.pop()
		return failed, foundFailure, err
	}
	n := 1
	if head.isBlock && !(e.options.Deterministic && len(e.list) > 1) {
		n = min(max, head.left())
	}
	if err := e.checkSpec(st, head, n); err != nil {
		failed := &Rows{Epoch: e.id, Stream: st.number, Index: head.index(), Count: n}
		head.at += n
		if head.left() == 0 {
			st.pop()
		}
		return failed, foundFailure, err
	}
	rows := head.take(n, lead)
	rows.Epoch, rows.Stream = e.id, st.number
	e.taken += uint64(n)
	e.takenBytes += uint64(size(rows))
	if head.left() == 0 {
		st.pop()
	}
	return rows, foundRows, nil
}

// pick chooses the stream to take from; nil when none may be taken from now. e.mu is held.
func (e *epoch) pick() *stream {
	if e.options.Deterministic {
		return e.pickInTurn()
	}
	n := uint32(len(e.list))
	for i := range n {
		if st := e.list[(e.cursor+i)%n]; len(st.queue) > 0 {
			return st
		}
	}
	return nil
}

// advance moves the turn behind a stream that is being taken from.
func (e *epoch) advance(st *stream) {
	if e.options.Deterministic {
		e.cursor = st.number + 1
		return
	}
	at, _ := slices.BinarySearchFunc(e.list, st.number, func(st *stream, n uint32) int { return int(int64(st.number) - int64(n)) })
	e.cursor = uint32(at+1) % uint32(len(e.list))
}

// pickInTurn is the stream whose turn it is if its element has come.
func (e *epoch) pickInTurn() *stream {
	if st := e.turn(); st != nil && len(st.queue) > 0 {
		return st
	}
	return nil
}

// turn keeps the one order that depends on nothing but the streams' contents: element 0 of streams 0, 1, …, then
// element 1 of each, streams that are over left out, and the closing stream when all others are over. It gives the stream that
// the next element comes from, and nil while the dispatcher has not told of that one. e.mu is held.
func (e *epoch) turn() *stream {
	regular := uint32(max(0, e.consumer.Plan.GetNumStreams()))
	if regular == 0 {
		regular = uint32(len(e.list))
	}
	for i := range regular {
		number := (e.cursor + i) % regular
		st := e.streams[number]
		switch {
		case st == nil && (e.noMore || e.final && number >= e.total):
			// Another consumer's.
		case st == nil:
			return nil
		case len(st.queue) > 0 || st.reading():
			return st
		}
	}
	return e.streams[regular]
}

// awaited are the streams that the next element can come from: in deterministic mode no more than one, whatever the others have
// or lack. e.mu is held.
func (e *epoch) awaited() []*stream {
	if !e.options.Deterministic {
		return e.list
	}
	if st := e.turn(); st != nil {
		return []*stream{st}
	}
	return nil
}

// drained is true when nothing is queued. e.mu is held.
func (e *epoch) drained() bool {
	for _, st := range e.list {
		if len(st.queue) > 0 {
			return false
		}
	}
	return true
}

// checkSpec compares an element with what the plan promised, so that nobody ever sees a mis-typed buffer.
func (e *epoch) checkSpec(st *stream, en *entry, n int) error {
	specs := e.consumer.Plan.GetComponents()
	if len(specs) == 0 || en.checked {
		return nil
	}
	where := func() string { return formatElement(st, en.index()) }
	if en.table.Components != len(specs) {
		return reason.New(reason.ElementSpec, "%s has %d components, the dataset's spec has %d", where(), en.table.Components, len(specs))
	}
	row := 0
	if !en.isBlock {
		row = en.at * en.table.Components
	}
	for c, spec := range specs {
		tensor := &en.table.Rows[row+c]
		if tensor.DType != uint32(spec.GetDtype()) {
			return reason.New(reason.ElementSpec, "%s: component %d is %s, the dataset's spec says %s", where(), c, frame.DTypeName(tensor.DType), frame.DTypeName(uint32(spec.GetDtype())))
		}
		if !fits(tensor.Dims, spec) {
			return reason.New(reason.ElementSpec, "%s: component %d has shape %v, the dataset's spec says %v", where(), c, tensor.Dims, spec.GetDims())
		}
	}
	// Every row of a block has the one shape that was looked at.
	en.checked = en.isBlock
	return nil
}

func fits(dims []uint64, spec *pecanv1.ComponentSpec) bool {
	if spec.GetUnknownRank() {
		return true
	}
	if len(dims) != len(spec.GetDims()) {
		return false
	}
	for i, want := range spec.GetDims() {
		if want >= 0 && dims[i] != uint64(want) {
			return false
		}
	}
	return true
}

// joins is true when the entry's next row has the shape of rows that were taken as a block.
func (en *entry) joins(rows *Rows) bool {
	if en.err != nil || en.table.Components != len(rows.Tensors) {
		return false
	}
	row := 0
	if !en.isBlock {
		row = en.at * en.table.Components
	}
	for c := range rows.Tensors {
		tensor, have := &en.table.Rows[row+c], &rows.Tensors[c]
		if tensor.DType != have.DType || len(tensor.Dims) != len(have.Dims)-1 {
			return false
		}
		for i, dim := range tensor.Dims {
			if have.Dims[i+1] != int64(dim) {
				return false
			}
		}
	}
	return true
}

// size is how many bytes the values of rows take.
func size(rows *Rows) int {
	n := 0
	for i := range rows.Tensors {
		n += len(rows.Tensors[i].Data) + len(rows.Tensors[i].Lengths)
	}
	return n
}

// gather copies pieces of one shape into one block of rows and releases them.
func gather(pool bufferPool, pieces []*Rows) (*Rows, error) {
	defer func() {
		for _, piece := range pieces {
			piece.Release()
		}
	}()
	first := pieces[0]
	total, count := uint64(0), 0
	for _, piece := range pieces {
		count += piece.Count
	}
	for c := range first.Tensors {
		for _, piece := range pieces {
			total += uint64(len(piece.Tensors[c].Data))
		}
		total = frame.AlignUp(total)
		for _, piece := range pieces {
			total += uint64(len(piece.Tensors[c].Lengths))
		}
		total = frame.AlignUp(total)
	}
	block, err := pool.Get(int(total))
	if err != nil {
		return nil, err
	}
	rows := &Rows{Epoch: first.Epoch, Stream: first.Stream, Index: first.Index, Count: count, Tensors: make([]Tensor, len(first.Tensors)), block: block, pieces: first.pieces}
	at := 0
	join := func(part func(*Rows) []byte) []byte {
		start := at
		for _, piece := range pieces {
			at += copy(block.Bytes()[at:], part(piece))
		}
		joined := block.Bytes()[start:at:at]
		at = int(frame.AlignUp(uint64(at)))
		return joined
	}
	for c := range first.Tensors {
		tensor := &rows.Tensors[c]
		tensor.DType = first.Tensors[c].DType
		tensor.Dims = append([]int64{int64(count)}, first.Tensors[c].Dims[1:]...)
		tensor.Data = join(func(r *Rows) []byte { return r.Tensors[c].Data })
		if tensor.DType == frame.DTString {
			tensor.Lengths = join(func(r *Rows) []byte { return r.Tensors[c].Lengths })
		}
	}
	return rows, nil
}
