package pecanv1

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
)

// InOrder returns how the elements of a cached step are stored if the dataset's steps run in an order. last is the step whose
// output is stored: the last one of the cached step and the steps upstream of it. Another order of these steps has another key.
// The result is nil in two cases. The order moves steps across the cached one, so that no step gives its elements. Or a shuffle
// would come before the last step.
//
// The key has the numbers of the steps and not their names, so graphs that differ only downstream share it.
func (c *CachePlan) InOrder(order []string) (in *CachePlan, last string) {
	number, listed := map[string]int{}, map[string]bool{}
	for _, node := range order {
		listed[node] = true
	}
	for _, node := range slices.Backward(c.GetUpstream()) {
		if listed[node] {
			number[node] = len(number)
		}
	}
	if len(number) == 0 {
		return c, c.GetNode()
	}
	first := int(c.GetBefore())
	if first+len(number) > len(order) {
		return nil, ""
	}
	prefix, numbers, moved := order[first:first+len(number)], make([]int, len(number)), false
	for i, node := range prefix {
		n, upstream := number[node]
		if !upstream {
			return nil, ""
		}
		numbers[i], moved = n, moved || n != i
	}
	if !moved {
		return c, c.GetNode()
	}
	last = prefix[len(prefix)-1]
	if c.GetLateAfter() != "" && c.GetLateAfter() != last {
		return nil, ""
	}
	sum := sha256.Sum256(fmt.Appendf(nil, "pecan cache order 1 %s %v", c.GetKey(), numbers))
	return &CachePlan{
		Node: c.Node, Key: hex.EncodeToString(sum[:]), Seeded: c.Seeded, Packed: c.Packed, Upstream: c.Upstream, Parts: c.Parts,
		Before: c.Before, LateAfter: c.LateAfter,
	}, last
}

// SameInOrders reports whether two orders give a cached step the same key.
func (c *CachePlan) SameInOrders(a, b []string) bool {
	first, _ := c.InOrder(a)
	second, _ := c.InOrder(b)
	return first.GetKey() == second.GetKey()
}
