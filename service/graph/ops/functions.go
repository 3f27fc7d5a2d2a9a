package ops

// FunctionAttr names the attribute that holds the function which a step calls for every element.
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

// CallsOnce are the ops that call each of their functions at most once.
var CallsOnce = Names(`PartitionedCall StatefulPartitionedCall If StatelessIf Case StatelessCase`)

// ElementFunctionAttr names the attribute with the function of a step that can be keyed: it is called once for each element.
func ElementFunctionAttr(op string) string {
	switch op {
	case "MapDataset", "ParallelMapDataset", "ParallelMapDatasetV2":
		return "f"
	case "FilterDataset", "ParallelFilterDataset":
		return "predicate"
	}
	return ""
}
