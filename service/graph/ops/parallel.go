package ops

import (
	"strings"
)

// IsParallel reports whether a dataset op calls its function for several elements at once.
func IsParallel(op string) bool {
	return strings.Contains(op, "Parallel") && !strings.Contains(op, "ParallelBatch") || strings.HasPrefix(op, "MapAndBatch")
}

// serialForm is the sequential op that does the same as a parallel one, and the last input that the
// sequential op keeps.
type serialForm struct{ Op, LastArg string }

// SequentialOps maps a parallel step to the step that does the same work one element at a time. The
// sequential step keeps the inputs up to LastArg. After other_arguments, a parallel op has one more input,
// which the sequential op lacks.
var SequentialOps = map[string]serialForm{
	"ParallelMapDataset":                {"MapDataset", "other_arguments"},
	"ParallelMapDatasetV2":              {"MapDataset", "other_arguments"},
	"ParallelFilterDataset":             {"FilterDataset", "other_arguments"},
	"ParallelInterleaveDatasetV2":       {"InterleaveDataset", "block_length"},
	"ParallelInterleaveDatasetV3":       {"InterleaveDataset", "block_length"},
	"ParallelInterleaveDatasetV4":       {"InterleaveDataset", "block_length"},
	"LegacyParallelInterleaveDatasetV2": {"InterleaveDataset", "block_length"},
}
