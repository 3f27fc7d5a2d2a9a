package dataflow

import (
	"fmt"
	"math/bits"
	"slices"
	"strings"
)

// Change says what a step does to the values of one component that it writes, as seen from that component.
// All other inputs of the result (other components, constants, random values) are among the step's reads, or
// they are fixed. Dimensions and positions refer to the component before the step.
type Change struct {
	Component int
	// Opaque says why nothing else is known. If it is "", the other fields hold.
	Opaque string
	// Computes is set if the result has values that the component did not have. Otherwise each value of the result is one
	// of the component's, or a constant of Inserts.
	Computes bool
	// Arithmetic is set if the new values come from arithmetic, whose result depends on the type.
	Arithmetic bool
	// AlignmentDependent is set if the last bits of a value that is computed point by point may depend on its position in
	// memory. Functions such as the logarithm process several values at once, and the few left at the end in another way.
	AlignmentDependent bool
	// Inserts has the constants that the step adds to the component's values. A step that adds other values computes.
	Inserts []float64
	// Affine is set if the new values are sums of the component's values with fixed weights, plus something fixed.
	Affine bool
	// PositionDependent contains the dimensions along which the computation differs from position to
	// position. For example, the subtraction of a mean per channel differs along the last dimension.
	PositionDependent Dims
	// Moves contains the dimensions along which values change places, or are removed or added.
	Moves Dims
	// Permutes contains the dimensions of Moves along which the step does more than reverse the order of all
	// values.
	Permutes Dims
	// Mixes contains the dimensions along which a value is computed from several. Skews contains those of
	// them along which reversed values do not give reversed results.
	Mixes, Skews Dims
	// DependsOnSize contains the dimensions whose sizes affect the computation, or must be the sizes at which
	// the function was traced.
	DependsOnSize Dims
	// ChecksSize contains the dimensions whose sizes decide whether the step fails, or how many values it
	// draws.
	ChecksSize Dims
	// Sizes contains the dimensions whose size may change.
	Sizes Dims
	// After has the sizes after the step, -1 for an unknown one. It is empty if the change is opaque.
	After []int64
	// value computes what the computation returns for one number.
	value scalarFunction
}

// PerValue reports whether a map computes each value from the value at the same position and keeps all sizes.
// Such a map may do the same to single rows as to a batch of rows.
func (c Change) PerValue() bool {
	return c.Opaque == "" && c.Moves|c.Mixes|c.Sizes|c.ChecksSize == 0
}

// SameInBatches reports whether a map that computes value by value does the same to rows in batches as to
// single rows.
func SameInBatches(rows, inBatches Change, batches int) bool {
	for range batches {
		rows = rows.InBatches()
	}
	return rows.PerValue() && inBatches.PerValue() && rows.PositionDependent == inBatches.PositionDependent && rows.DependsOnSize == inBatches.DependsOnSize
}

// InBatches returns what the same map does to rows if they are in batches.
func (c Change) InBatches() Change {
	for _, dims := range []*Dims{&c.PositionDependent, &c.Moves, &c.Permutes, &c.Mixes, &c.Skews, &c.DependsOnSize, &c.ChecksSize, &c.Sizes} {
		*dims <<= 1
	}
	if c.After != nil {
		c.After = append([]int64{-1}, c.After...)
	}
	return c
}

// Dims is a set of dimensions.
type Dims uint32

const maxDims = 16

// rankDim is the bit in Dims for the number of dimensions. A step that depends on this number does something
// else to rows in batches.
const rankDim Dims = 1 << maxDims

// DimSet returns the set of the given dimensions.
func DimSet(dims ...int) (s Dims) {
	for _, d := range dims {
		s |= 1 << d
	}
	return s
}

// String lists the dimensions.
func (d Dims) String() string {
	var words []string
	for d != 0 {
		dim := bits.TrailingZeros32(uint32(d))
		words = append(words, fmt.Sprint(dim))
		d &^= 1 << dim
	}
	return strings.Join(words, ",")
}

// union returns the change of a result that is computed from two tensors.
func (c Change) union(other Change) Change {
	c.Computes = c.Computes || other.Computes
	c.Arithmetic = c.Arithmetic || other.Arithmetic
	c.Affine = c.Affine && other.Affine
	c.AlignmentDependent = c.AlignmentDependent || other.AlignmentDependent
	c.PositionDependent |= other.PositionDependent
	c.Moves |= other.Moves
	c.Permutes |= other.Permutes
	c.Mixes |= other.Mixes
	c.Skews |= other.Skews
	c.DependsOnSize |= other.DependsOnSize
	c.Inserts = append(slices.Clone(c.Inserts), other.Inserts...)
	if c.value = agree(c.value, other.value); c.Computes {
		c.Inserts = nil
	}
	return c
}

// CommutesWith reports whether two adjacent steps may change places as far as this component is concerned.
// The result must be equal to the last bit, except for the bits of NaN values. why is the reason if they may
// not.
func (c Change) CommutesWith(other Change) (ok bool, why string) {
	switch {
	case c.Opaque != "":
		return false, c.Opaque
	case other.Opaque != "":
		return false, other.Opaque
	case c.Computes && other.Computes:
		return false, "both compute values"
	}
	if why := c.InsertionsDiffer(other); why != "" {
		return false, why
	}
	for _, pair := range [][2]Change{{c, other}, {other, c}} {
		if both := pair[0].Moves & (pair[1].PositionDependent | pair[1].Moves | pair[1].Mixes); both != 0 {
			return false, fmt.Sprintf("one moves values along dimension %v, and the other's result depends on positions there", both)
		}
		if pair[0].Moves != 0 && (pair[1].AlignmentDependent || pair[1].Mixes != 0) {
			return false, "one moves values, and the last bits of the other's result can depend on positions in memory"
		}
		if both := pair[0].Sizes & pair[1].DependsOnSize; both != 0 {
			return false, fmt.Sprintf("one changes the size of dimension %v, and the other's result depends on that size", both)
		}
		if both := pair[0].Sizes & pair[1].ChecksSize; both != 0 {
			return false, fmt.Sprintf("one changes the size of dimension %v, and the other checks that size", both)
		}
	}
	return true, ""
}
