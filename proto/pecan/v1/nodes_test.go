package pecanv1

import (
	"fmt"
	"slices"
	"testing"

	"google.golang.org/protobuf/proto"
)

// interleave returns the metrics of an interleave whose function has a filter before a map.
func interleave(elements, returned uint64, seconds float64, inside ...*NodeMetrics) *NodeMetrics {
	return &NodeMetrics{Node: "A", Op: "InterleaveDataset", Elements: elements, SelfCpuS: seconds, InsideElements: returned, Inside: inside}
}

func inner(name string, elements uint64, seconds float64) *NodeMetrics {
	return &NodeMetrics{Node: name, Elements: elements, SelfCpuS: seconds, BytesIn: elements, BytesOut: 2 * elements}
}

func TestMetricsOfStepsInFunctionsAreAddedByName(t *testing.T) {
	sum := &NodeMetrics{Node: "A"}
	for _, more := range []*NodeMetrics{
		interleave(10, 5, 4, inner("A:Map", 5, 2)),
		interleave(20, 8, 6, inner("A:Map", 8, 3), inner("A:Filter", 16, 1)),
	} {
		sum.Add(more)
	}
	want := interleave(30, 13, 10, inner("A:Filter", 16, 1), inner("A:Map", 13, 5))
	if !proto.Equal(sum, want) {
		t.Errorf("the sum is %v", sum)
	}
	sum.Subtract(interleave(20, 8, 6, inner("A:Map", 8, 3), inner("A:Filter", 16, 1), inner("A:Other", 1, 1)))
	if want := interleave(10, 5, 4, inner("A:Filter", 0, 0), inner("A:Map", 5, 2)); !proto.Equal(sum, want) {
		t.Errorf("the difference is %v", sum)
	}
}

// The counts of steps in functions are samples.
func TestStepsInFunctionsAreScaledToTheElementsOfTheirCaller(t *testing.T) {
	deep := inner("A:Flat", 10, 1)
	deep.InsideElements, deep.Inside = 5, []*NodeMetrics{inner("A:Flat:Map", 5, 0.5)}
	nodes := []*NodeMetrics{inner("Before", 7, 1), interleave(100, 10, 4, inner("A:Filter", 40, 1), deep), inner("After", 3, 1)}
	var got []string
	for _, n := range WithInside(nodes) {
		got = append(got, fmt.Sprintf("%s %d %.3g", n.GetNode(), n.GetElements(), n.GetSelfCpuS()))
	}
	want := []string{"Before 7 1", "A 100 2", "A:Filter 400 10", "A:Flat 100 5", "A:Flat:Map 100 10", "After 3 1"}
	if !slices.Equal(got, want) {
		t.Errorf("the list is %q, want %q", got, want)
	}
	unknown := []*NodeMetrics{interleave(100, 0, 4, inner("A:Filter", 40, 1))}
	if all := WithInside(unknown); len(all) != 1 || all[0].GetSelfCpuS() != 4 {
		t.Errorf("nothing was returned when it was read: %v", all)
	}
}
