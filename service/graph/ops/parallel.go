package ops

import (
	"strings"
)

// IsParallel tells whether a dataset op calls its function for several elements at once.
func IsParallel(op string) bool {
	return strings.Contains(op, "Parallel") && !strings.Contains(op, "ParallelBatch") || strings.HasPrefix(op, "MapAndBatch")
}

// serialForm is the op that does the same as a parallel one, and the last input that it keeps.
type serialForm struct{ Op, LastArg string }

// SequentialOps are the steps that do the same as parallel ones, one element at a time. Of the inputs they keep those up to
// LastArg; behind other_arguments comes one that is left out.
var SequentialOps = map[string]serialForm{
	"ParallelMapDataset":                {"MapDataset", "other_arguments"},
	"ParallelMapDatasetV2":              {"MapDataset", "other_arguments"},
	"ParallelFilterDataset":             {"FilterDataset", "other_arguments"},
	"ParallelInterleaveDatasetV2":       {"InterleaveDataset", "block_length"},
	"ParallelInterleaveDatasetV3":       {"InterleaveDataset", "block_length"},
	"ParallelInterleaveDatasetV4":       {"InterleaveDataset", "block_length"},
	"LegacyParallelInterleaveDatasetV2": {"InterleaveDataset", "block_length"},
}
