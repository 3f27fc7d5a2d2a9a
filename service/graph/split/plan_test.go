package split_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/proto/reason"
	tf "github.com/pecan-ml/pecan/proto/tensorflow"
	"github.com/pecan-ml/pecan/service/graph"
	"github.com/pecan-ml/pecan/service/graph/analysis"
	"github.com/pecan-ml/pecan/service/graph/graphtest"
	"github.com/pecan-ml/pecan/service/graph/nodedef"
	"github.com/pecan-ml/pecan/service/graph/split"
)

const (
	file       = pecanv1.Sharding_SHARDING_FILE
	data       = pecanv1.Sharding_SHARDING_DATA
	fileOrData = pecanv1.Sharding_SHARDING_FILE_OR_DATA
	hint       = pecanv1.Sharding_SHARDING_HINT
	dynamic    = pecanv1.Sharding_SHARDING_DYNAMIC
)

func TestAPlanFollowsFromGraphAndOptions(t *testing.T) {
	const (
		elements, blocks, files = pecanv1.Cut_ELEMENTS, pecanv1.Cut_BLOCKS, pecanv1.Cut_FILES
		exact                   = pecanv1.BatchStrategy_BATCH_STRATEGY_EXACT
		remainder               = pecanv1.BatchStrategy_BATCH_STRATEGY_REMAINDER
		closing                 = pecanv1.BatchStrategy_BATCH_STRATEGY_CLOSING
	)
	for name, c := range map[string]struct {
		graph    string
		opts     *pecanv1.JobOptions
		workers  int
		streams  int32
		kind     pecanv1.Cut_Kind
		strategy pecanv1.BatchStrategy
		block    int64
		edge     string
		repeat   int64
		card     int64
	}{
		"a range is cut by elements":                        {graph: "range", opts: graphtest.Once, streams: 16, kind: elements, strategy: exact, block: 1, edge: "RangeDataset", repeat: 1, card: 100},
		"dynamic sharding follows the rules too":            {graph: "range", opts: graphtest.Sharded(dynamic), streams: 16, kind: elements, strategy: exact, block: 1, edge: "RangeDataset", repeat: 1, card: 100},
		"the workers do not change S":                       {graph: "range", opts: graphtest.Sharded(dynamic), workers: 3, streams: 16, kind: elements, strategy: exact, block: 1, edge: "RangeDataset", repeat: 1, card: 100},
		"a counted batch is cut in blocks":                  {graph: "map_batch", opts: graphtest.Once, streams: 4, kind: blocks, strategy: exact, block: 8, edge: "RangeDataset", repeat: 1, card: 12},
		"a filter before a batch leaves remainders":         {graph: "filter_batch", opts: graphtest.Once, streams: 16, kind: elements, strategy: remainder, block: 1, edge: "RangeDataset", repeat: 1, card: -2},
		"a map after such a batch needs a closing stream":   {graph: "filter_batch_map", opts: graphtest.Once, streams: 16, kind: elements, strategy: closing, block: 1, edge: "RangeDataset", repeat: 1, card: -2},
		"records are cut by files":                          {graph: "records", opts: graphtest.Once, streams: 8, kind: files, strategy: remainder, block: 1, edge: "TensorSliceDataset", repeat: 1, card: -2},
		"a repeat after a file cache stays in the stream":   {graph: "cache_file", opts: graphtest.Once, streams: 5, kind: elements, strategy: exact, block: 1, edge: "RangeDataset", repeat: 1, card: 60},
		"an endless repeat is removed":                      {graph: "endless", opts: graphtest.Once, streams: 7, kind: elements, strategy: exact, block: 1, edge: "RangeDataset", repeat: -1, card: 30},
		"an endless repeat before a batch stays":            {graph: "endless_batch", opts: graphtest.Once, streams: 4, kind: blocks, strategy: exact, block: 4, edge: "RepeatDataset", repeat: 1, card: -1},
		"sharding FILE cuts by files":                       {graph: "records", opts: graphtest.Sharded(file), workers: 3, streams: 3, kind: files, strategy: remainder, block: 1, edge: "TensorSliceDataset", repeat: 1, card: -2},
		"sharding DATA cuts by elements":                    {graph: "records", opts: graphtest.Sharded(data), workers: 3, streams: 3, kind: blocks, strategy: exact, block: 8, edge: "FlatMapDataset", repeat: 1, card: -2},
		"FILE_OR_DATA takes files if there are enough":      {graph: "records", opts: graphtest.Sharded(fileOrData), workers: 8, streams: 8, kind: files, strategy: remainder, block: 1, edge: "TensorSliceDataset", repeat: 1, card: -2},
		"FILE_OR_DATA takes elements when they do not":      {graph: "records", opts: graphtest.Sharded(fileOrData), workers: 9, streams: 9, kind: blocks, strategy: exact, block: 8, edge: "FlatMapDataset", repeat: 1, card: -2},
		"a hint is set":                                     {graph: "hint", opts: graphtest.Sharded(hint), workers: 3, streams: 3, kind: pecanv1.Cut_HINT, strategy: exact, block: 1, edge: "ShardDataset", repeat: 1, card: -2},
		"mode off divides nothing":                          {graph: "records", opts: &pecanv1.JobOptions{Mode: pecanv1.Mode_MODE_OFF}, streams: 0, kind: pecanv1.Cut_NONE, strategy: exact, repeat: 1, card: -2},
		"a generator's state divides":                       {graph: "seed_generator", opts: graphtest.Once, streams: 16, kind: elements, strategy: exact, block: 1, edge: "RangeDataset", repeat: 1, card: 64},
		"a filter by drawn values divides":                  {graph: "seed_generator_filtered", opts: graphtest.Once, streams: 16, kind: elements, strategy: exact, block: 1, edge: "RangeDataset", repeat: 1, card: -2},
		"a variable that counts values divides":             {graph: "counter", opts: graphtest.Once, streams: 4, kind: elements, strategy: exact, block: 1, edge: "RangeDataset", repeat: 1, card: 5},
		"a variable that a filter sees does not":            {graph: "filtered_counter", opts: graphtest.Once, streams: 1, kind: pecanv1.Cut_NONE, strategy: exact, repeat: 1, card: -2},
		"a zip of seeded shuffles is cut after both":        {graph: "zip", opts: graphtest.Once, streams: 4, kind: elements, strategy: exact, block: 1, edge: "ShuffleDatasetV3", repeat: 1, card: 50},
		"records that are read for nothing are not divided": {graph: "enumerate_records", opts: graphtest.Once, streams: 1, kind: pecanv1.Cut_NONE, strategy: exact, repeat: 1, card: -2},
		"rows that are padded together stay together":       {graph: "padded", opts: graphtest.Once, streams: 4, kind: blocks, strategy: exact, block: 4, edge: "FilterDataset", repeat: 1, card: -2},
	} {
		t.Run(name, func(t *testing.T) {
			g := graphtest.Parse(t, c.graph)
			p := graphtest.Plan(t, g, c.opts, c.workers)
			if p.NumStreams != c.streams || p.Cut.Kind != c.kind || p.BatchStrategy != c.strategy || p.Cut.Block != c.block || p.Repeat != c.repeat || p.Cardinality != c.card {
				t.Errorf("plan %v", p)
			}
			for _, edge := range p.Cut.Edges {
				if !strings.HasPrefix(edge, c.edge+"/") {
					t.Errorf("cut after %s, want a %s", edge, c.edge)
				}
			}
			if len(p.Cut.Edges) == 0 && c.edge != "" {
				t.Error("no edges")
			}
			if len(p.Reasons) == 0 || p.Fingerprint != g.Fingerprint() || len(p.Components) == 0 {
				t.Errorf("plan without reasons, fingerprint or components: %v", p)
			}
			if again := graphtest.Plan(t, graphtest.Parse(t, c.graph), c.opts, c.workers); !proto.Equal(p, again) {
				t.Errorf("the same graph gives another plan: %v", again)
			}
		})
	}
}

// manyFiles makes the list of files of a graph longer.
func manyFiles(n int) func(*tf.GraphDef) {
	return func(def *tf.GraphDef) {
		for _, node := range def.Node {
			if value := node.GetAttr()["value"].GetTensor(); value.GetDtype() == tf.DataType_DT_STRING && len(value.GetTensorShape().GetDim()) == 1 {
				value.TensorShape.Dim[0].Size, value.TensorContent = int64(n), nil
				for len(value.StringVal) < n {
					value.StringVal = append(value.StringVal, fmt.Appendf(nil, "/more/%d", len(value.StringVal)))
				}
			}
		}
	}
}

// Each plan says in its reasons what limits the number of streams.
func TestAPlanSaysWhatLimitsItsStreams(t *testing.T) {
	numbers := func(from, to int64) func(*tf.GraphDef) {
		return func(def *tf.GraphDef) {
			for _, node := range def.Node {
				if value := node.GetAttr()["value"].GetTensor(); slices.Equal(value.GetInt64Val(), []int64{from}) {
					value.Int64Val[0] = to
				}
			}
		}
	}
	shuffled := func(def *tf.GraphDef) {
		manyFiles(1000)(def)
		numbers(100, 300)(def)
	}
	// listed makes a list of the source, whose length is not known.
	listed := func(def *tf.GraphDef) {
		n := graphtest.OfOp(t, def, "RangeDataset")
		n.Op, n.Attr["Tinput_types"] = "ListDataset", nodedef.TypesAttr([]tf.DataType{tf.DataType_DT_INT64, tf.DataType_DT_INT64, tf.DataType_DT_INT64})
	}
	const large = 64 << 30
	deterministic := &pecanv1.JobOptions{Mode: graphtest.Deterministic}
	counted := []*pecanv1.NodeMetrics{{Node: "TensorSliceDataset/_1", Elements: 1000, SelfCpuS: 400}, {Node: "ShuffleDatasetV3/_7", Elements: 25_600}}
	measured := []*pecanv1.NodeMetrics{{Node: "RangeDataset/_3", Elements: 100, SelfCpuS: 2.9}}
	for name, c := range map[string]struct {
		graph  string
		change func(*tf.GraphDef)
		opts   *pecanv1.JobOptions
		env    split.Env
		want   string
	}{
		"random steps and little work": {graph: "noise", change: numbers(20, 2000), opts: graphtest.Once, want: "at least this many; the source has 2000 elements"},
		"a variable and little work":   {graph: "counter", change: numbers(5, 2000), opts: graphtest.Once, want: "at least this many; the source has 2000 elements"},
		"a variable and much work":     {graph: "counter", change: numbers(5, 1<<20), opts: graphtest.Once, want: "keeps a state, so each stream needs an iterator of its own"},
		"a hint":                       {graph: "hint", opts: graphtest.Sharded(hint), want: "With sharding HINT, a dataset has at most 16 streams"},
		"a stream per file":            {graph: "records", opts: graphtest.Sharded(file), want: "by files, into 8 streams."},
		"few files of unknown size":    {graph: "records", change: manyFiles(20), opts: graphtest.Sharded(file), want: "into 8 streams. There are 20 files; opening a stream takes time"},
		"more files":                   {graph: "records", change: manyFiles(40), opts: graphtest.Sharded(file), want: "into 10 streams. There are 40 files; opening a stream takes time"},
		"many files":                   {graph: "records", change: manyFiles(100), opts: graphtest.Sharded(file), want: "into 16 streams. There are 16 streams: the dataset is shuffled, and the number of its elements is not known"},
		"few elements":                 {graph: "map_batch", opts: graphtest.Once, want: "into 4 streams. There are 13 splits; opening a stream takes time"},
		"few elements, much work":      {graph: "map_batch", opts: graphtest.Once, env: split.Env{Profile: measured}, want: "into 7 streams. There are 7 streams: an earlier job spent 2.9 s"},
		"the same in a fixed order":    {graph: "map_batch", opts: deterministic, env: split.Env{Profile: measured}, want: "into 4 streams. There are 13 splits; opening a stream takes time"},
		"few small files":              {graph: "records", change: manyFiles(40), opts: graphtest.Once, env: split.Env{FileBytes: 300 << 20}, want: "into 10 streams. There are 40 files; opening a stream takes time"},
		"few files":                    {graph: "records", change: manyFiles(20), opts: graphtest.Once, env: split.Env{FileBytes: 320 << 20}, want: "into 10 streams. There are 10 streams: the files have 320 MB, and 32 MB make"},
		"few large files":              {graph: "records", change: manyFiles(12), opts: graphtest.Once, env: split.Env{FileBytes: large}, want: "into 12 streams. Each of the 12 files has a stream of its own."},
		"more large files":             {graph: "records", change: manyFiles(50), opts: deterministic, env: split.Env{FileBytes: large, FileRecords: 1e6}, want: "into 50 streams. There are 50 streams: each of the 50 splits"},
		"many large files, shuffled": {graph: "records", change: shuffled, opts: graphtest.Once, env: split.Env{FileBytes: large, FileRecords: 10_200},
			want: "into 67 streams. There are 67 streams: the shuffle holds 300 of about 10200 elements (estimated from the sizes of sampled records)"},
		"the same order again": {graph: "records", change: shuffled, opts: deterministic, env: split.Env{FileBytes: large, FileRecords: 10_200}, want: "into 67 streams."},
		"few records, shuffled": {graph: "records", change: shuffled, opts: graphtest.Once, env: split.Env{FileBytes: large, FileRecords: 500},
			want: "into 16 streams. There are 16 streams, because a dataset with enough splits has at least this many; the shuffle holds 300 of about 500"},
		"short batches": {graph: "records", change: manyFiles(1000), opts: graphtest.Once, env: split.Env{FileBytes: large, FileRecords: 10_200},
			want: "into 159 streams. There are 159 streams: an epoch has about 10200 rows (estimated from the sizes of sampled records), and a stream has at least 8 batches of 8"},
		"short batches that were counted": {graph: "records", change: manyFiles(1000), opts: graphtest.Once, env: split.Env{FileBytes: large, Profile: counted},
			want: "into 400 streams. There are 400 streams: an epoch has 25600 rows, and a stream has at least 8 batches of 8"},
		"short batches of a source that nobody can count": {graph: "endless_batch", change: listed, opts: graphtest.Once, env: split.Env{Carry: true}, want: "into 16 streams. There are 16 streams: the source is very long, or its length is not known. The number of elements that reach BatchDatasetV2"},
		"many elements":    {graph: "range", opts: graphtest.Once, want: "into 16 streams. There are 16 streams, because a dataset with enough splits has at least this many"},
		"no work":          {graph: "zip", opts: graphtest.Once, want: "into 4 streams. No work comes after the cut"},
		"an endless range": {graph: "endless_batch", opts: graphtest.Once, want: "into 4 streams. "},
	} {
		t.Run(name, func(t *testing.T) {
			def := graphtest.Decode(t, graphtest.Read(t, c.graph))
			if c.change != nil {
				c.change(def)
			}
			g, err := graph.Parse(graphtest.Encode(t, def), graph.Limits{})
			if err != nil {
				t.Fatal(err)
			}
			plan, err := split.MakePlan(g, c.opts, c.env)
			if err != nil {
				t.Fatal(err)
			}
			if said := strings.Join(plan.Reasons, " ") + " " + plan.StreamsWhy; !strings.Contains(said, c.want) {
				t.Errorf("reasons are %q, want %q", said, c.want)
			}
			if plan.StreamsWhy == "" || plan.Cut.Kind != pecanv1.Cut_HINT && !strings.Contains(strings.Join(plan.Reasons, " "), plan.StreamsWhy) {
				t.Errorf("the number of streams is because of %q, and the reasons are %q", plan.StreamsWhy, plan.Reasons)
			}
		})
	}
}

func TestAPlanReportsWrittenFiles(t *testing.T) {
	named := func(path string) func(*tf.GraphDef) {
		return func(def *tf.GraphDef) {
			name := nodedef.Const("path", &tf.TensorProto{Dtype: tf.DataType_DT_STRING, TensorShape: nodedef.Shape(), StringVal: [][]byte{[]byte(path)}})
			f := def.GetLibrary().GetFunction()[0]
			f.NodeDef = append(f.NodeDef, name, &tf.NodeDef{Name: "cache", Op: "CacheDataset", Input: []string{"x", "path:output:0"}})
		}
	}
	for name, c := range map[string]struct {
		graph string
		// change modifies the parsed graph, in a function that a step calls.
		change func(*tf.GraphDef)
		want   bool
	}{
		"no cache":                   {graph: "map_batch"},
		"a file cache":               {graph: "cache_file", want: true},
		"a file cache in a function": {graph: "map_batch", change: named("/cache/file"), want: true},
		"a cache in memory in one":   {graph: "map_batch", change: named("")},
	} {
		t.Run(name, func(t *testing.T) {
			g := graphtest.Parse(t, c.graph)
			if c.change != nil {
				c.change(g.Def())
			}
			if p := graphtest.Plan(t, g, graphtest.Once, 0); p.WritesFiles != c.want {
				t.Errorf("plan %v", p)
			}
			if p := graphtest.Plan(t, g, &pecanv1.JobOptions{Mode: pecanv1.Mode_MODE_OFF}, 0); p.WritesFiles != c.want {
				t.Errorf("plan of sharding OFF %v", p)
			}
		})
	}
}

func TestShardingThatDoesNotFitTheDatasetIsRefused(t *testing.T) {
	for name, c := range map[string]struct {
		graph   string
		opts    *pecanv1.JobOptions
		workers int
		want    reason.Reason
	}{
		"fewer files than workers":     {"records", graphtest.Sharded(file), 9, reason.ShardingFiles},
		"no files at all":              {"range", graphtest.Sharded(file), 2, reason.ShardingSource},
		"a hint in another mode":       {"hint", graphtest.Sharded(dynamic), 0, reason.ShardingHint},
		"a hint without sharding":      {"hint", graphtest.Sharded(pecanv1.Sharding_SHARDING_OFF), 0, reason.ShardingHint},
		"the mode HINT without a hint": {"range", graphtest.Sharded(hint), 2, reason.ShardingHint},
	} {
		t.Run(name, func(t *testing.T) {
			p, err := split.MakePlan(graphtest.Parse(t, c.graph), c.opts, split.Env{StaticWorkers: c.workers})
			if p != nil || !reason.Is(err, c.want) {
				t.Errorf("plan %v, error %v, want %s", p, err, c.want)
			}
		})
	}
}

func TestAssertedCardinalityIsCheckedByTheClient(t *testing.T) {
	p := graphtest.Plan(t, graphtest.Parse(t, "assert_cardinality"), graphtest.Once, 0)
	if p.AssertedCardinality != 27 || p.Cardinality != 27 {
		t.Errorf("plan %v", p)
	}
	if p := graphtest.Plan(t, graphtest.Parse(t, "range"), graphtest.Once, 0); p.AssertedCardinality != analysis.Unknown {
		t.Errorf("asserted %d without assert_cardinality", p.AssertedCardinality)
	}
}

func TestEndlessStreamsAreAllOpen(t *testing.T) {
	for name, want := range map[string]bool{"endless_batch": true, "endless": false, "range": false} {
		if p := graphtest.Plan(t, graphtest.Parse(t, name), graphtest.Once, 0); p.AllOpen != want {
			t.Errorf("%s: all_open %v", name, p.AllOpen)
		}
	}
	if p := graphtest.Plan(t, graphtest.Parse(t, "range"), &pecanv1.JobOptions{Mode: pecanv1.Mode_MODE_DETERMINISTIC}, 0); !p.AllOpen {
		t.Error("a deterministic order needs all streams")
	}
}

func TestTheHashCoversWhatAffectsElements(t *testing.T) {
	p := graphtest.Plan(t, graphtest.Parse(t, "records"), graphtest.Once, 0)
	other := proto.Clone(p).(*pecanv1.Plan)
	other.Reasons = append(other.Reasons, "another sentence")
	if split.PlanHash(other) != p.Hash {
		t.Error("another reason changes the hash")
	}
	other.NumStreams++
	if split.PlanHash(other) == p.Hash {
		t.Error("another number of streams does not change the hash")
	}
}

func TestTheCardinalityOfARangeDoesNotOverflow(t *testing.T) {
	const low, high = -1 << 63, 1<<63 - 1
	for _, c := range [][4]int64{{0, 10, 1, 10}, {0, 10, 3, 4}, {10, 0, -3, 4}, {5, 5, 1, 0}, {5, 0, 1, 0}, {0, high, 1, high}, {low, high, 1, high}, {high, low, low, 2}} {
		if n := analysis.RangeCount(c[0], c[1], c[2]); n != c[3] {
			t.Errorf("range(%d, %d, %d) has %d elements, want %d", c[0], c[1], c[2], n, c[3])
		}
	}
}
