package pecanv1

import (
	"cmp"
	"slices"
)

// maxInside bounds the steps of one function whose metrics are summed.
const maxInside = 1024

// Add adds the counts of more to n, and those of the steps in the node's function.
func (n *NodeMetrics) Add(more *NodeMetrics) {
	n.Op = cmp.Or(n.Op, more.GetOp())
	n.Elements += more.GetElements()
	n.SelfCpuS += more.GetSelfCpuS()
	n.BytesIn += more.GetBytesIn()
	n.BytesOut += more.GetBytesOut()
	n.InsideElements += more.GetInsideElements()
	for _, inner := range more.GetInside() {
		at, found := n.inner(inner.GetNode())
		if !found {
			if len(n.Inside) >= maxInside {
				continue
			}
			n.Inside = slices.Insert(n.Inside, at, &NodeMetrics{Node: inner.GetNode()})
		}
		n.Inside[at].Add(inner)
	}
}

// Subtract takes the counts of less away from n, and those of the steps in the node's function.
func (n *NodeMetrics) Subtract(less *NodeMetrics) {
	n.Elements -= min(n.Elements, less.GetElements())
	n.SelfCpuS = max(0, n.SelfCpuS-less.GetSelfCpuS())
	n.BytesIn -= min(n.BytesIn, less.GetBytesIn())
	n.BytesOut -= min(n.BytesOut, less.GetBytesOut())
	n.InsideElements -= min(n.InsideElements, less.GetInsideElements())
	for _, inner := range less.GetInside() {
		if at, found := n.inner(inner.GetNode()); found {
			n.Inside[at].Subtract(inner)
		}
	}
}

// inner finds a step of the node's function, which are sorted by name, or the place for it.
func (n *NodeMetrics) inner(name string) (at int, found bool) {
	return slices.BinarySearchFunc(n.Inside, name, func(m *NodeMetrics, name string) int { return cmp.Compare(m.GetNode(), name) })
}

// WithInside lists nodes and the steps in their functions side by side. The steps in a function were read at some times only,
// so their counts are scaled to the elements that the function has returned. The time of a node is then its own.
func WithInside(nodes []*NodeMetrics) (all []*NodeMetrics) {
	for _, n := range nodes {
		all = n.appendTo(all, 1)
	}
	return all
}

// appendTo appends a node and the steps in its function, with their counts multiplied by scale.
func (n *NodeMetrics) appendTo(all []*NodeMetrics, scale float64) []*NodeMetrics {
	scaled := func(count uint64) uint64 { return uint64(float64(count)*scale + 0.5) }
	own := &NodeMetrics{
		Node: n.GetNode(), Op: n.GetOp(), Elements: scaled(n.GetElements()), SelfCpuS: n.GetSelfCpuS() * scale,
		BytesIn: scaled(n.GetBytesIn()), BytesOut: scaled(n.GetBytesOut()),
	}
	all = append(all, own)
	if n.GetInsideElements() == 0 {
		return all
	}
	inside := scale * float64(n.GetElements()) / float64(n.GetInsideElements())
	for _, inner := range n.GetInside() {
		own.SelfCpuS = max(0, own.SelfCpuS-inner.GetSelfCpuS()*scale)
		all = inner.appendTo(all, inside)
	}
	return all
}
