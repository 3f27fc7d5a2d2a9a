package ops

// FunctionAttr returns the attribute with the function that a step calls for every element, "" if there is
// none.
func FunctionAttr(op string) string {
	switch Rules[op].Kind {
	case OneToOne:
		return "f"
	case PerElement:
		if op == "FilterDataset" || op == "ParallelFilterDataset" {
			return "predicate"
		}
		return "f"
	}
	if op == "TakeWhileDataset" {
		return "predicate"
	}
	return ""
}

// CallsOnce lists the ops that call each of their functions at most once.
var CallsOnce = Names(`PartitionedCall StatefulPartitionedCall If StatelessIf Case StatelessCase`)

// ElementFunctionAttr returns the attribute with the function of a step that can be keyed, "" for other
// steps. Such a step calls its function once for each element.
func ElementFunctionAttr(op string) string {
	switch op {
	case "MapDataset", "ParallelMapDataset", "ParallelMapDatasetV2":
		return "f"
	case "FilterDataset", "ParallelFilterDataset":
		return "predicate"
	}
	return ""
}
