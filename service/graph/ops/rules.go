package ops

// kind is how a dataset op behaves when the source below it is divided.
type kind int

const (
	// Undivided: what it gives depends on the elements before, so the cut is above it.
	Undivided kind = iota
	// Source: reads no other dataset.
	Source
	// OneToOne: element p of the output is made of element p of the input.
	OneToOne
	// PassThrough: gives its input unchanged (prefetch, options).
	PassThrough
	// PerElement: each input element gives zero or more outputs (filter, flat_map, interleave, unbatch).
	PerElement
	// Shuffled: the same elements in another order.
	Shuffled
	Zipped
	Concatenated
	Repeated
	// Batched: groups consecutive elements.
	Batched
	// Rebatched: groups rows again, whatever the batches below were.
	Rebatched
	Windowed
	// Positional: take, skip, shard.
	Positional
	Cached
	// Asserted: assert_cardinality.
	Asserted
	// Directed: picks its inputs by a selector.
	Directed
)

// Rule is one line of the table in docs/design: how an op behaves, and what it costs to run it in every stream.
type Rule struct {
	Kind kind
	// Cost of reading from a source: 0 for what is computed from an index, 2 for records of files.
	Cost int
	// Mixes: the order of outputs depends on several inputs at once (interleave).
	Mixes bool
}

// Rules has a rule for every dataset op that Pecan understands. Other ops are Undivided.
var Rules = map[string]Rule{
	"RangeDataset": {Kind: Source}, "TensorSliceDataset": {Kind: Source}, "TensorDataset": {Kind: Source},
	"SparseTensorSliceDataset": {Kind: Source}, "RandomDataset": {Kind: Source}, "RandomDatasetV2": {Kind: Source},
	"ListDataset":     {Kind: Source},
	"TFRecordDataset": {Kind: Source, Cost: 2}, "TFRecordDatasetV2": {Kind: Source, Cost: 2},
	"TextLineDataset": {Kind: Source, Cost: 2}, "FixedLengthRecordDataset": {Kind: Source, Cost: 2},
	"FixedLengthRecordDatasetV2": {Kind: Source, Cost: 2}, "CSVDataset": {Kind: Source, Cost: 2},
	"CSVDatasetV2": {Kind: Source, Cost: 2}, "SqlDataset": {Kind: Source, Cost: 2}, "LMDBDataset": {Kind: Source, Cost: 2},
	"MatchingFilesDataset": {Kind: Source, Cost: 2}, "LoadDataset": {Kind: Source, Cost: 3},

	"MapDataset": {Kind: OneToOne}, "ParallelMapDataset": {Kind: OneToOne}, "ParallelMapDatasetV2": {Kind: OneToOne},
	"ParseExampleDataset": {Kind: OneToOne}, "ParseExampleDatasetV2": {Kind: OneToOne},

	"PrefetchDataset": {Kind: PassThrough}, "OptionsDataset": {Kind: PassThrough}, "ModelDataset": {Kind: PassThrough},
	"OptimizeDataset": {Kind: PassThrough}, "OptimizeDatasetV2": {Kind: PassThrough}, "FinalizeDataset": {Kind: PassThrough},
	"MaxIntraOpParallelismDataset": {Kind: PassThrough}, "PrivateThreadPoolDataset": {Kind: PassThrough},
	"LatencyStatsDataset": {Kind: PassThrough}, "BytesProducedStatsDataset": {Kind: PassThrough}, "SleepDataset": {Kind: PassThrough},

	"FilterDataset": {Kind: PerElement}, "ParallelFilterDataset": {Kind: PerElement},
	"FlatMapDataset": {Kind: PerElement}, "UnbatchDataset": {Kind: PerElement}, "IgnoreErrorsDataset": {Kind: PerElement},
	"SamplingDataset":   {Kind: PerElement},
	"InterleaveDataset": {Kind: PerElement, Mixes: true}, "ParallelInterleaveDataset": {Kind: PerElement, Mixes: true},
	"ParallelInterleaveDatasetV2":       {Kind: PerElement, Mixes: true},
	"ParallelInterleaveDatasetV3":       {Kind: PerElement, Mixes: true},
	"ParallelInterleaveDatasetV4":       {Kind: PerElement, Mixes: true},
	"LegacyParallelInterleaveDatasetV2": {Kind: PerElement, Mixes: true},

	"ShuffleDataset": {Kind: Shuffled}, "ShuffleDatasetV2": {Kind: Shuffled}, "ShuffleDatasetV3": {Kind: Shuffled},
	"SnapshotDatasetV2": {Kind: Shuffled},

	"ZipDataset": {Kind: Zipped}, "ConcatenateDataset": {Kind: Concatenated}, "RepeatDataset": {Kind: Repeated},
	"DirectedInterleaveDataset": {Kind: Directed},

	"BatchDataset": {Kind: Batched}, "BatchDatasetV2": {Kind: Batched}, "ParallelBatchDataset": {Kind: Batched},
	"PaddedBatchDataset": {Kind: Batched}, "PaddedBatchDatasetV2": {Kind: Batched}, "MapAndBatchDataset": {Kind: Batched},
	"DenseToSparseBatchDataset": {Kind: Batched}, "RebatchDatasetV2": {Kind: Rebatched}, "WindowDataset": {Kind: Windowed},

	"TakeDataset": {Kind: Positional}, "SkipDataset": {Kind: Positional}, "ShardDataset": {Kind: Positional},
	"CacheDataset": {Kind: Cached}, "CacheDatasetV2": {Kind: Cached}, "AssertCardinalityDataset": {Kind: Asserted},
}
