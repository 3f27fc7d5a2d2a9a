package graph

import (
	"cmp"
	"fmt"

	"go.uber.org/multierr"
)

// Limits bound what Parse accepts. A zero field means its default.
type Limits struct {
	// Bytes of a serialised graph.
	MaxBytes int64
	// Nodes, those of functions included.
	MaxNodes int
	// Functions in the library.
	MaxFunctions int
	// Functions that call functions, counted along the deepest path; also the nesting of messages.
	MaxDepth int
	// Bytes of a name.
	MaxNameBytes int
	// Bytes that one constant takes in memory.
	MaxTensorBytes int64
	// Rows of a batch. TensorFlow makes room for all of them at once, and ends the process when it cannot.
	MaxBatch int64
	// Ops that an administrator allows beyond the built-in list.
	AllowOps []string
	// GraphVersion is the newest graph that the workers read; 0 takes that of the embedded op list.
	GraphVersion int32
}

// MostBytes is what a serialised graph can have at most, as any protocol buffer.
const MostBytes = 2<<30 - 1

// PeerLimits are the default limits but for the graph's size, which the dispatcher alone decides: trainers and workers
// look at graphs too, and shall not refuse what it is told to take.
func PeerLimits() Limits {
	limits := DefaultLimits()
	limits.MaxBytes = MostBytes
	return limits
}

// DefaultLimits gives the limits that hold when nothing is configured.
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

// Validate reports every field that makes no sense.
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
			err = multierr.Append(err, fmt.Errorf("graph limit %s is %d, give 0 for the default or a positive number", f.name, f.value))
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
