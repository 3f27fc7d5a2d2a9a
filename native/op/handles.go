package op

// #include "ops.h"
import "C"

import (
	"runtime/cgo"
	"sync/atomic"
	"time"

	"github.com/pecan-ml/pecan/native/client"
	"github.com/pecan-ml/pecan/native/client/element"
	"github.com/pecan-ml/pecan/proto/frame"
	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/proto/reason"
)

// maxBlockElements and blockBytes limit what PecanNextBlock returns at once. A block is large enough that a call
// costs little per element. It is small enough that the first element does not wait long for the last.
const (
	maxBlockElements = 1024
	blockBytes       = 1 << 20
)

// Iteration is the object behind an iteration tensor. The iterations of package client have these methods.
type Iteration interface {
	NextElement(wait time.Duration) (*element.Elements, client.Status, error)
	NextBlock(maxElements int, wait time.Duration) (*element.Elements, client.Status, error)
	// Waiting says for people why no element is ready. computing is true if workers are only computing it.
	Waiting() (why string, computing bool)
	Close() error
}

// JobConfig configures a Job. All functions may be called from any thread and must not block.
type JobConfig struct {
	// Components describe every element.
	Components []*pecanv1.ComponentSpec
	// Open starts an iteration.
	Open func() (Iteration, error)
	// Closed is called when the last reference is released. It has a goroutine of its own, because the thread
	// may be TensorFlow's.
	Closed func()
	// Broken returns why no more elements will arrive, or nil.
	Broken func() error
	// Warn receives why an iteration has been waiting for long.
	Warn func(string)
	// Owner is returned by function Owner.
	Owner any
}

// Job is the object behind a job tensor. It opens iterations. It lives as long as a reference to it.
type Job struct {
	config        JobConfig
	blockElements int
	refs          atomic.Int64
}

// NewJob creates a job with one reference, the caller's.
func NewJob(config JobConfig) *Job {
	j := &Job{config: config, blockElements: blockElements(config.Components)}
	j.refs.Store(1)
	return j
}

// Handle returns the number of the job for Python. PecanJob makes a tensor of the number, and the reference
// moves into the tensor.
func (j *Job) Handle() int64 { return int64(cgo.NewHandle(j)) }

// Owner returns the owner of a handle's job.
func Owner(handle int64) (any, error) {
	j, err := lookup[*Job](handle)
	if err != nil {
		return nil, err
	}
	return j.config.Owner, nil
}

// Release drops a reference.
func (j *Job) Release() {
	if j.refs.Add(-1) == 0 && j.config.Closed != nil {
		go j.config.Closed()
	}
}

// retain adds a reference unless the last one was released already.
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

// Blocks reports whether elements of these components are returned in blocks. That requires small
// tensors of known shape and fixed width.
func Blocks(components []*pecanv1.ComponentSpec) bool { return blockElements(components) > 0 }

// Above this many bytes, splitting a block into elements, which copies them, costs more than requesting each
// element.
const maxElementBytes = 16 << 10

// blockElements returns how many elements PecanNextBlock returns at once for such elements; 0 if it cannot return blocks of them.
func blockElements(components []*pecanv1.ComponentSpec) int {
	bytes := int64(0)
	for _, c := range components {
		width := int64(frame.Width(uint32(c.GetDtype())))
		if !unbatched(c.GetDtype()) || c.GetUnknownRank() {
			return 0
		}
		for _, dim := range c.GetDims() {
			if dim < 0 || dim > maxElementBytes {
				return 0
			}
			if width *= dim; width > maxElementBytes {
				return 0
			}
		}
		// TensorFlow's unbatch crashes on elements without bytes.
		if width == 0 {
			return 0
		}
		bytes += width
	}
	if bytes > maxElementBytes {
		return 0
	}
	return int(max(1, min(maxBlockElements, blockBytes/max(1, bytes))))
}

// unbatched reports whether TensorFlow's unbatch can split a dtype: numbers and bool, but neither strings nor
// the newer small floats and integers.
func unbatched(dtype int32) bool {
	switch dtype {
	case 1, 2, 3, 4, 5, 6, 8, 9, 10, 14, 17, 18, 19, 22, 23:
		return true
	}
	return false
}

// check compares a component with the registered dataset's spec. TensorFlow would read any bytes as the type
// that the graph expects.
func (j *Job) check(elements *element.Elements, leading int) error {
	if len(elements.Tensors) != len(j.config.Components) {
		return reason.New(reason.ElementSpec, "element %d of stream %d has %d components, the dataset has %d",
			elements.Index, elements.Stream, len(elements.Tensors), len(j.config.Components))
	}
	for i := range elements.Tensors {
		got, want := &elements.Tensors[i], j.config.Components[i]
		dims := got.Dims[min(leading, len(got.Dims)):]
		if int32(got.DType) != want.GetDtype() || !pecanv1.ShapeFits(want, dims) {
			return reason.New(reason.ElementSpec, "component %d of element %d of stream %d is %s of shape %v, the dataset's element_spec says %s of shape %s",
				i, elements.Index, elements.Stream, frame.DTypeName(got.DType), dims, frame.DTypeName(uint32(want.GetDtype())), want.ShapeText())
		}
	}
	return nil
}

// lookup finds the object of a handle. A handle may be stale, because a tensor's value outlives the tensor
// where TensorFlow wrote the value into a graph.
func lookup[T any](handle int64) (found T, err error) {
	defer func() {
		if recover() != nil {
			err = reason.New(reason.Closed, "handle %d refers to a dataset that was deleted", handle)
		}
	}()
	value, ok := cgo.Handle(handle).Value().(T)
	if !ok {
		return found, reason.New(reason.BadArgument, "handle %d refers to another kind of object", handle)
	}
	return value, nil
}

// drop ends a handle and its object. It does not block.
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
