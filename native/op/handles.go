package op

// #include "ops.h"
import "C"

import (
	"fmt"
	"runtime/cgo"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/pecan-ml/pecan/native/client"
	"github.com/pecan-ml/pecan/native/client/element"
	"github.com/pecan-ml/pecan/proto/frame"
	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/proto/reason"
)

// MaxWait bounds one call of a kernel.
const MaxWait = 100 * time.Millisecond

// maxBlockRows and blockBytes bound what PecanNextBlock hands over at once: enough that a call costs little per row,
// little enough that the first row does not wait for the last.
const (
	maxBlockRows = 1024
	blockBytes   = 1 << 20
)

// Iteration is what a token stands for; package client's has these methods.
type Iteration interface {
	NextElement(wait time.Duration) (*element.Rows, client.Status, error)
	NextBlock(maxRows int, wait time.Duration) (*element.Rows, client.Status, error)
	// Waiting says, for people, why nothing comes; computing: it is only being computed.
	Waiting() (why string, computing bool)
	Close() error
}

// JobConfig is what a Job is made of. All functions may be called from any thread and must not wait.
type JobConfig struct {
	// Components are what every element consists of.
	Components []*pecanv1.ComponentSpec
	// Open starts an iteration.
	Open func() (Iteration, error)
	// Closed is called when the last reference goes, on a goroutine of its own: the thread may be TensorFlow's.
	Closed func()
	// Broken gives the reason why nothing will come any more, or nil.
	Broken func() error
	// Notice is told, for people, why an iteration has been waiting for long.
	Notice func(string)
	// Owner is given back by Owner.
	Owner any
}

// Job is what a job tensor stands for: a way to open iterations, alive while anybody refers to it.
type Job struct {
	config    JobConfig
	blockRows int
	refs      atomic.Int64
}

// NewJob makes a job with one reference, the caller's.
func NewJob(config JobConfig) *Job {
	j := &Job{config: config, blockRows: blockRows(config.Components)}
	j.refs.Store(1)
	return j
}

// Handle names the job to Python; PecanJob makes a tensor of it, and with it the reference moves into the tensor.
func (j *Job) Handle() int64 { return int64(cgo.NewHandle(j)) }

// Owner finds the owner of the job that a handle stands for.
func Owner(handle int64) (any, error) {
	j, err := lookup[*Job](handle)
	if err != nil {
		return nil, err
	}
	return j.config.Owner, nil
}

// Release gives a reference back.
func (j *Job) Release() {
	if j.refs.Add(-1) == 0 && j.config.Closed != nil {
		go j.config.Closed()
	}
}

// retain adds a reference unless the last one is gone already.
func (j *Job) retain() bool {
	for {
		refs := j.refs.Load()
		if refs <= 0 {
			return false
		}
		if j.refs.CompareAndSwap(refs, refs+1) {
			return true
		}
	}
}

// DropHandle ends a handle that no tensor was made of.
func DropHandle(handle int64) { drop(uintptr(handle)) }

// Blocks tells whether elements of these components are handed over in blocks of rows: each a small tensor of a known
// shape and a fixed width.
func Blocks(components []*pecanv1.ComponentSpec) bool { return blockRows(components) > 0 }

// Above this many bytes, cutting a block into rows (a copy) costs more than asking for each element.
const maxRowBytes = 16 << 10

func blockRows(components []*pecanv1.ComponentSpec) int {
	bytes := int64(0)
	for _, c := range components {
		width := int64(frame.Width(uint32(c.GetDtype())))
		if !unbatched(c.GetDtype()) || c.GetUnknownRank() {
			return 0
		}
		for _, dim := range c.GetDims() {
			if dim < 0 || dim > maxRowBytes {
				return 0
			}
			if width *= dim; width > maxRowBytes {
				return 0
			}
		}
		// TensorFlow's unbatch dies of rows without bytes.
		if width == 0 {
			return 0
		}
		bytes += width
	}
	if bytes > maxRowBytes {
		return 0
	}
	return int(max(1, min(maxBlockRows, blockBytes/max(1, bytes))))
}

// unbatched tells the dtypes that TensorFlow's unbatch can cut: the numbers and bool, and neither strings nor the small
// floats and integers that came later.
func unbatched(dtype int32) bool {
	switch dtype {
	case 1, 2, 3, 4, 5, 6, 8, 9, 10, 14, 17, 18, 19, 22, 23:
		return true
	}
	return false
}

// iteration is a token's state. TensorFlow calls the kernels of one token one after the other.
type iteration struct {
	job   *Job
	inner Iteration

	mu sync.Mutex
	// over: its end was handed out, or nobody is left to ask.
	over bool
	// broken is the error that ended it before its end.
	broken *reason.Error
	// unanswered is the Ctrl-C that the process's own handler had not heard of when the last wait was over, reported the last one of which
	// the caller was told; 0 for none.
	unanswered, reported uint64
	// slices counts the waits in a row in which nothing came; told is the slice at which people were told.
	slices int
	told   int
}

func newIteration(job *Job) (*iteration, error) {
	if !job.retain() {
		return nil, reason.New(reason.Closed, "the dataset's job was closed already")
	}
	inner, err := job.config.Open()
	if err != nil {
		job.Release()
		return nil, err
	}
	return &iteration{job: job, inner: inner, reported: uint64(C.pecan_unanswered_interrupt())}, nil
}

func (it *iteration) close() {
	it.mu.Lock()
	it.over = true
	it.mu.Unlock()
	// Nobody is left to be told of an error.
	_ = it.inner.Close()
	it.job.Release()
}

// element takes one element; block takes rows. Both wait MaxWait at most.
func (it *iteration) element() (*element.Rows, client.Status, error) {
	if it.over || it.broken != nil {
		return it.nothingMore()
	}
	rows, status, err := it.inner.NextElement(MaxWait)
	return it.settle(rows, status, err, 0)
}

func (it *iteration) block() (*element.Rows, client.Status, error) {
	if it.over || it.broken != nil {
		return it.nothingMore()
	}
	rows, status, err := it.inner.NextBlock(max(1, it.job.blockRows), MaxWait)
	return it.settle(rows, status, err, 1)
}

// nothingMore is the answer to whoever asks on. Behind an error it is never the end: a repeat() would begin the next epoch, a cache() keep
// what came so far for all there is, and a training loop believe that it has had everything. It is the error once more, and as CANCELLED:
// TensorFlow's ignore_errors() asks again after every other code, for ever.
func (it *iteration) nothingMore() (*element.Rows, client.Status, error) {
	if it.broken == nil {
		return nil, client.End, nil
	}
	return nil, client.Broken, reason.WithCode(it.broken.Reason, codes.Canceled, it.broken.Message)
}

// ended says of an error that nothing comes behind it. The Python package looks for these words: the error stands in no element's place.
func ended(err error) *reason.Error {
	own := reason.From(err)
	return reason.WithCode(own.Reason, own.Code(), own.Message+"; the iterator ends with this error, before the end of its pass")
}

// settle looks at what a wait gave: whether the element is what was promised, whether the user interrupted the wait,
// whether the iteration goes on.
func (it *iteration) settle(rows *element.Rows, status client.Status, err error, leading int) (*element.Rows, client.Status, error) {
	if status == client.Ready {
		it.slices, it.told = 0, 0
		if it.unanswered != 0 {
			// Elements that come one by one keep nobody's handler from running, unless one call asks for all of them.
			it.unanswered = uint64(C.pecan_unanswered_interrupt())
		}
		if err := it.job.check(rows, leading); err != nil {
			rows.Release()
			return nil, client.Failed, err
		}
		return rows, status, nil
	}
	switch {
	case status == client.NotYet:
		it.slices++
		it.explain()
		if it.interrupted() {
			return nil, client.Failed, reason.New(reason.Interrupted, "interrupted while waiting for the next element")
		}
		if err := it.sessionBroken(); err != nil {
			it.broken = ended(err)
			return nil, client.Broken, it.broken
		}
	case status == client.End:
		it.over = true
	case status == client.Broken:
		it.broken = ended(err)
		return nil, status, it.broken
	}
	return nil, status, err
}

// A wait is explained after noticeAfter, or computingAfter when an element merely takes its time, which is nothing unusual,
// and again each time it has become twice as long.
const (
	noticeAfter    = 2 * time.Second
	computingAfter = 10 * time.Second
)

func (it *iteration) explain() {
	if it.slices < max(int(noticeAfter/MaxWait), 2*it.told) || it.job.config.Notice == nil {
		return
	}
	why, computing := it.inner.Waiting()
	if why == "" || computing && it.slices < int(computingAfter/MaxWait) {
		return
	}
	it.told = it.slices
	waited := (time.Duration(it.slices) * MaxWait).Round(time.Second)
	it.job.config.Notice(fmt.Sprintf("no element for %v: %s", waited, why))
}

// interrupted tells whether there was a Ctrl-C that the process's own handler hears of only when the wait ends: it runs between two steps of
// Python's main thread, so it has not run though a whole slice has passed. One that came while the main thread was elsewhere is nothing to
// those who wait here.
func (it *iteration) interrupted() bool {
	before := it.unanswered
	it.unanswered = uint64(C.pecan_unanswered_interrupt())
	if before == 0 || it.unanswered == 0 || it.unanswered == it.reported {
		return false
	}
	it.reported = it.unanswered
	return true
}

// sessionBroken is why nothing will come any more, or nil.
func (it *iteration) sessionBroken() error {
	if it.job.config.Broken == nil {
		return nil
	}
	return it.job.config.Broken()
}

// check compares a component with what the dataset was registered with: TensorFlow would take any bytes as whatever the
// graph expects.
func (j *Job) check(rows *element.Rows, leading int) error {
	if len(rows.Tensors) != len(j.config.Components) {
		return reason.New(reason.ElementSpec, "element %d of stream %d has %d components, the dataset has %d",
			rows.Index, rows.Stream, len(rows.Tensors), len(j.config.Components))
	}
	for i := range rows.Tensors {
		got, want := &rows.Tensors[i], j.config.Components[i]
		dims := got.Dims[min(leading, len(got.Dims)):]
		if int32(got.DType) != want.GetDtype() || !matches(dims, want) {
			return reason.New(reason.ElementSpec, "component %d of element %d of stream %d is %s of shape %v, the dataset's element_spec says %s of shape %s",
				i, rows.Index, rows.Stream, frame.DTypeName(got.DType), dims, frame.DTypeName(uint32(want.GetDtype())), shapeText(want))
		}
	}
	return nil
}

func matches(dims []int64, want *pecanv1.ComponentSpec) bool {
	if want.GetUnknownRank() {
		return true
	}
	if len(dims) != len(want.GetDims()) {
		return false
	}
	for i, dim := range want.GetDims() {
		if dim >= 0 && dims[i] != dim {
			return false
		}
	}
	return true
}

func shapeText(c *pecanv1.ComponentSpec) string {
	if c.GetUnknownRank() {
		return "unknown"
	}
	return fmt.Sprint(c.GetDims())
}

// lookup finds what a handle stands for. A handle may be stale: a tensor's value outlives the tensor where TensorFlow
// wrote it into a graph.
func lookup[T any](handle int64) (found T, err error) {
	defer func() {
		if recover() != nil {
			err = reason.New(reason.Closed, "handle %d stands for nothing any more: its dataset was deleted", handle)
		}
	}()
	value, ok := cgo.Handle(handle).Value().(T)
	if !ok {
		return found, reason.New(reason.BadArgument, "handle %d stands for something else", handle)
	}
	return value, nil
}

// drop ends a handle and what it stands for. Nothing here waits.
func drop(handle uintptr) {
	defer func() { _ = recover() }()
	value := cgo.Handle(handle).Value()
	cgo.Handle(handle).Delete()
	switch held := value.(type) {
	case *Job:
		held.Release()
	case *iteration:
		go held.close()
	}
}
