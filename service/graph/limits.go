package graph

import (
	"cmp"
	"errors"
	"fmt"
)

// Limits bound what Parse accepts. A zero field means its default.
type Limits struct {
	// MaxBytes is the size of a serialised graph.
	MaxBytes int64
	// MaxNodes is the number of nodes, including those of functions.
	MaxNodes int
	// MaxFunctions is the number of functions in the library.
	MaxFunctions int
	// MaxDepth is the length of the longest chain of calls between functions. It also bounds the nesting of
	// messages.
	MaxDepth int
	// MaxNameBytes is the length of a name.
	MaxNameBytes int
	// MaxTensorBytes is the size of one constant in memory.
	MaxTensorBytes int64
	// MaxBatch is the number of rows of a batch. TensorFlow allocates memory for all of them at once, and the
	// process ends if that fails.
	MaxBatch int64
	// AllowOps contains ops that an administrator allows beyond the built-in list.
	AllowOps []string
	// GraphVersion is the newest graph version that the workers read. 0 means the version of the embedded op
	// list.
	GraphVersion int32
}

// MostBytes is the largest possible size of a serialised graph, a limit of protocol buffers.
const MostBytes = 2<<30 - 1

// PeerLimits returns the default limits without a limit on the graph's size. Only the dispatcher limits that
// size. Trainers and workers also parse graphs, and must not refuse what the dispatcher accepted.
func PeerLimits() Limits {
	limits := DefaultLimits()
	limits.MaxBytes = MostBytes
	return limits
}

// DefaultLimits returns the limits that apply if nothing is configured.
func DefaultLimits() Limits {
	return Limits{
		MaxBytes:       256 << 20,
		MaxNodes:       500_000,
		MaxFunctions:   50_000,
		MaxDepth:       100,
		MaxNameBytes:   1 << 10,
		MaxTensorBytes: 2 << 30,
		MaxBatch:       1 << 27,
	}
}

// Validate reports every negative field and every other field that is out of range.
func (l Limits) Validate() error {
	var err error
	for _, f := range []struct {
		name  string
		value int64
	}{
		{"MaxBytes", l.MaxBytes}, {"MaxNodes", int64(l.MaxNodes)}, {"MaxFunctions", int64(l.MaxFunctions)},
		{"MaxDepth", int64(l.MaxDepth)}, {"MaxNameBytes", int64(l.MaxNameBytes)},
		{"MaxTensorBytes", l.MaxTensorBytes}, {"MaxBatch", l.MaxBatch}, {"GraphVersion", int64(l.GraphVersion)},
	} {
		if f.value < 0 {
			err = errors.Join(err, fmt.Errorf("graph limit %s is %d: give 0 for the default or a positive number", f.name, f.value))
		}
	}
	return err
}

func (l Limits) withDefaults() Limits {
	d := DefaultLimits()
	l.MaxBytes = cmp.Or(l.MaxBytes, d.MaxBytes)
	l.MaxNodes = cmp.Or(l.MaxNodes, d.MaxNodes)
	l.MaxFunctions = cmp.Or(l.MaxFunctions, d.MaxFunctions)
	l.MaxDepth = cmp.Or(l.MaxDepth, d.MaxDepth)
	l.MaxNameBytes = cmp.Or(l.MaxNameBytes, d.MaxNameBytes)
	l.MaxTensorBytes = cmp.Or(l.MaxTensorBytes, d.MaxTensorBytes)
	l.MaxBatch = cmp.Or(l.MaxBatch, d.MaxBatch)
	return l
}
