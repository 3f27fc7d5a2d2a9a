package dataflow

import (
	"fmt"
	"math/bits"
	"strings"
)

// Change is what a step does to the values of one component that it writes, as seen from that component: what else goes into the result
// (other components, constants, draws) is among what the step reads, or fixed. Dimensions are those of the component in front of the
// step, and places along a dimension are counted as there.
type Change struct {
	Component int
	// Opaque says why nothing else is known; empty: the rest holds.
	Opaque string
	// Computes: the result holds other values than the component; else each of them is one of its values.
	Computes bool
	// Arithmetic: it does so by arithmetic, which comes out otherwise in another type. What computes without only puts values in: those of the
	// component and others, as a turn puts zeros in where nothing lies.
	Arithmetic bool
	// AlignmentDependent: the last bits of what it computes point by point may depend on where in memory a value lies. Functions like the logarithm are
	// computed in one way for several values at once, and in another for the few that are left at the end.
	AlignmentDependent bool
	// Affine: what it computes are sums of the component's values, with fixed weights, and something fixed.
	Affine bool
	// PositionDependent has the dimensions along which it computes differently from place to place, as the subtraction of a mean for each
	// channel does along the last one.
	PositionDependent Dims
	// Moves has the dimensions along which values change places, are left out or are added.
	Moves Dims
	// Permutes has those of Moves along which it does more than turn the order of all values around.
	Permutes Dims
	// Mixes has the dimensions along which a value is computed from several, and Skews those of them along which values in the opposite
	// order do not give their results in the opposite order.
	Mixes, Skews Dims
	// DependsOnSize has the dimensions on whose sizes it depends what is done, or that must have the sizes that they had when the function was
	// traced.
	DependsOnSize Dims
	// ChecksSize has the dimensions on whose sizes it depends whether the step fails, or how much it draws.
	ChecksSize Dims
	// Sizes has the dimensions that may have another size behind it.
	Sizes Dims
	// After are the sizes behind it, -1 where one is not known; none if it is opaque.
	After []int64
}

// PerValue tells whether a map computes each value from the one at its place, and keeps all sizes: it may then do the same to rows one by
// one and to a batch of them.
func (c Change) PerValue() bool {
	return c.Opaque == "" && c.Moves|c.Mixes|c.Sizes|c.ChecksSize == 0
}

// SameInBatches tells whether a map that computes value by value does to rows in batches what it does to rows.
func SameInBatches(rows, inBatches Change, batches int) bool {
	for range batches {
		rows = rows.InBatches()
	}
	return rows.PerValue() && inBatches.PerValue() && rows.PositionDependent == inBatches.PositionDependent && rows.DependsOnSize == inBatches.DependsOnSize
}

// InBatches is what the same map does to rows where they lie in batches.
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

// rankDim stands among the dimensions for how many there are: what looks at that does something else to rows in batches.
const rankDim Dims = 1 << maxDims

// DimSet is the set of the given dimensions.
func DimSet(dims ...int) (s Dims) {
	for _, d := range dims {
		s |= 1 << d
	}
	return s
}

// String lists the dimensions.
func (s Dims) String() string {
	var words []string
	for s != 0 {
		d := bits.TrailingZeros32(uint32(s))
		words = append(words, fmt.Sprint(d))
		s &^= 1 << d
	}
	return strings.Join(words, ",")
}

// union gives what holds of a result that is made of two.
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
	return c
}

// CommutesWith tells whether two steps, next to each other, may change places as far as this component goes, and the result is equal to
// the last bit, but for bits of what is no number; why not, if not.
func (c Change) CommutesWith(other Change) (ok bool, why string) {
	switch {
	case c.Opaque != "":
		return false, c.Opaque
	case other.Opaque != "":
		return false, other.Opaque
	case c.Computes && other.Computes:
		return false, "both compute its values"
	}
	for _, pair := range [][2]Change{{c, other}, {other, c}} {
		if both := pair[0].Moves & (pair[1].PositionDependent | pair[1].Moves | pair[1].Mixes); both != 0 {
			return false, fmt.Sprintf("one moves values along dimension %v, and the other's work depends on places there", both)
		}
		if pair[0].Moves != 0 && (pair[1].AlignmentDependent || pair[1].Mixes != 0) {
			return false, "one moves values, and the last bits of what the other computes may depend on where they lie"
		}
		if both := pair[0].Sizes & pair[1].DependsOnSize; both != 0 {
			return false, fmt.Sprintf("one changes the size of dimension %v, and the other's work depends on that", both)
		}
		if both := pair[0].Sizes & pair[1].ChecksSize; both != 0 {
			return false, fmt.Sprintf("one changes the size of dimension %v, and the other checks that", both)
		}
	}
	return true, ""
}
