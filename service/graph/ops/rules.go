package ops

// kind says how a dataset op behaves when the source upstream of it is divided.
type kind int

const (
	// Undivided means that the output depends on earlier elements, so the cut is downstream of the op.
	Undivided kind = iota
	// A Source step reads no other dataset.
	Source
	// OneToOne means that output element p is computed from input element p.
	OneToOne
	// A PassThrough step returns its input unchanged (prefetch, options).
	PassThrough
	// PerElement means that each input element gives zero or more output elements (filter, flat_map, interleave,
	// unbatch).
	PerElement
	// A Shuffled step returns the same elements in another order.
	Shuffled
	Zipped
	Concatenated
	Repeated
	// A Batched step groups consecutive elements.
	Batched
	// A Rebatched step groups rows again, regardless of the sizes of the input batches.
	Rebatched
	Windowed
	// Positional steps are take, skip and shard.
	Positional
	Cached
	// The Asserted step is assert_cardinality.
	Asserted
	// A Directed step selects its inputs by a selector dataset.
	Directed
)

// Rule says how an op behaves, and how much it costs to run it in every stream.
type Rule struct {
	Kind kind
	// Cost is the cost of reading from a source. It is 0 if elements are computed from an index, 2 for records of files, and
	// 3 for more than that. It is 3 for a step that is slow without a function.
	Cost int
	// Mixes is set if the order of the outputs depends on several inputs at once (interleave).
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
	"LatencyStatsDataset": {Kind: PassThrough}, "BytesProducedStatsDataset": {Kind: PassThrough}, "SleepDataset": {Kind: PassThrough, Cost: 3},

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
