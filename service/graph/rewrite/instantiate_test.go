package rewrite_test

import (
	"bytes"
	"fmt"
	"sync"
	"testing"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/proto/reason"
	tf "github.com/pecan-ml/pecan/proto/tensorflow"
	"github.com/pecan-ml/pecan/service/graph"
	"github.com/pecan-ml/pecan/service/graph/graphtest"
	"github.com/pecan-ml/pecan/service/graph/nodedef"
	"github.com/pecan-ml/pecan/service/graph/rewrite"
	"github.com/pecan-ml/pecan/service/graph/split"
)

func TestEqualArgumentsGiveEqualGraphs(t *testing.T) {
	for _, name := range []string{"map_batch", "records", "nested_shuffle", "lookup", "slices", "cache_file"} {
		at := rewrite.At{Stream: 1, Epoch: 3, Seed: 9, Mode: graphtest.Once.Mode, Source: 4, Threads: 2}
		write := func() []byte {
			g := graphtest.Parse(t, name)
			graphs, err := rewrite.Instantiate(g, graphtest.Plan(t, g, graphtest.Once, 0), at)
			if err != nil {
				t.Fatal(err)
			}
			return graphs.A
		}
		first, second := write(), write()
		if !bytes.Equal(first, second) {
			t.Errorf("%s: two calls give different graphs", name)
		}
	}
}

func TestInstantiateDoesNotChangeTheGraph(t *testing.T) {
	g := graphtest.Parse(t, "map_batch")
	before := graphtest.Encode(t, g.Def())
	p := graphtest.Plan(t, g, graphtest.Once, 0)
	for s := range int(p.NumStreams) {
		if _, err := rewrite.Instantiate(g, p, rewrite.At{Stream: s, Epoch: 1, Mode: graphtest.Once.Mode, Source: -1, Threads: 2}); err != nil {
			t.Fatal(err)
		}
	}
	if len(before) != len(graphtest.Encode(t, g.Def())) || g.Fingerprint() != graphtest.FingerprintOf(t, graphtest.Encode(t, g.Def())) {
		t.Error("the graph changed")
	}
}

func TestUnknownStreamsAndOtherPlansAreRefused(t *testing.T) {
	g := graphtest.Parse(t, "range")
	p := graphtest.Plan(t, g, graphtest.Once, 0)
	for _, s := range []int{-1, int(p.NumStreams), 1000} {
		if _, err := rewrite.Instantiate(g, p, rewrite.At{Stream: s}); !reason.Is(err, reason.StreamUnknown) {
			t.Errorf("stream %d: %v", s, err)
		}
	}
	if _, err := rewrite.Instantiate(graphtest.Parse(t, "zip"), p, rewrite.At{}); !reason.Is(err, reason.Internal) {
		t.Errorf("a plan for another dataset: %v", err)
	}
	p.NumStreams++
	if _, err := rewrite.Instantiate(g, p, rewrite.At{}); !reason.Is(err, reason.Internal) {
		t.Errorf("a changed plan: %v", err)
	}
}

func TestARangeIsCutByItsStartAndStep(t *testing.T) {
	def := graphtest.Stream(t, "range", rewrite.At{Stream: 3})
	n := graphtest.OfOp(t, def, "RangeDataset")
	if start, step := graphtest.Number(t, def, n, 0), graphtest.Number(t, def, n, 2); start != 3 || step != 16 {
		t.Errorf("range from %d in steps of %d", start, step)
	}
	if graphtest.HasOp(def, "ShardDataset") {
		t.Error("the stream has a shard step")
	}
}

func TestSlicesAreCutInTheirConstants(t *testing.T) {
	rows := 0
	g := graphtest.Parse(t, "slices")
	p := graphtest.Plan(t, g, graphtest.Once, 0)
	for s := range int(p.NumStreams) {
		def := graphtest.Stream(t, "slices", rewrite.At{Stream: s})
		n := graphtest.OfOp(t, def, "TensorSliceDataset")
		var sizes []int64
		for _, input := range n.GetInput() {
			sizes = append(sizes, nodedef.Tensor(graphtest.Named(t, def, input)).GetTensorShape().GetDim()[0].GetSize())
		}
		if sizes[0] != sizes[1] || sizes[1] != sizes[2] {
			t.Errorf("stream %d has components of %v rows", s, sizes)
		}
		texts, ok := nodedef.Strings(graphtest.Named(t, def, n.GetInput()[1]))
		if !ok || string(texts[0]) != fmt.Sprintf("text %d", 3*s) {
			t.Errorf("stream %d starts with %q", s, texts)
		}
		rows += int(sizes[0])
		for _, c := range def.GetNode() {
			if nodedef.Tensor(c).GetTensorShape() != nil && len(nodedef.Tensor(c).GetTensorShape().GetDim()) > 0 && nodedef.Tensor(c).GetTensorShape().GetDim()[0].GetSize() == 20 {
				t.Errorf("stream %d still has all rows in %s", s, c.GetName())
			}
		}
	}
	if rows != 20 {
		t.Errorf("the streams have %d rows, want 20", rows)
	}
}

// The streams of a group, or of a plan without groups, are open together. Together they hold the elements of a local run's buffer.
func TestTheStreamsThatAreOpenTogetherDivideTheShuffleBuffer(t *testing.T) {
	for _, c := range []struct {
		streams, group int32
		want           int64
	}{{4, 0, 100}, {16, 0, 25}, {40, 16, 25}, {400, 16, 25}} {
		g, err := graph.Parse(graphtest.Changed(t, "map_batch", func(d *tf.GraphDef) {
			graphtest.SetConst(t, d, graphtest.OfOp(t, d, "RangeDataset"), 1, 8*1000)
			graphtest.SetConst(t, d, graphtest.OfOp(t, d, "ShuffleDatasetV3"), 1, 400)
		}), graph.Limits{})
		if err != nil {
			t.Fatal(err)
		}
		plan := graphtest.Plan(t, g, &pecanv1.JobOptions{Mode: graphtest.ExactlyOnce, Streams: c.streams}, 0)
		if plan.NumStreams != c.streams || plan.Group != c.group {
			t.Fatalf("%d streams in groups of %d: %s", plan.NumStreams, plan.Group, plan.StreamsWhy)
		}
		for _, stream := range []int{0, int(c.streams) - 1} {
			graphs, err := rewrite.Instantiate(g, plan, rewrite.At{Stream: stream, Mode: graphtest.ExactlyOnce})
			if err != nil {
				t.Fatal(err)
			}
			def := graphtest.Decode(t, graphs.A)
			if size := graphtest.Number(t, def, graphtest.OfOp(t, def, "ShuffleDatasetV3"), 1); size != c.want {
				t.Errorf("a buffer of 400 over %d streams has %d elements in stream %d, want %d", c.streams, size, stream, c.want)
			}
		}
	}
}

// TensorFlow allocates the whole buffer at once, so a shuffle of 2^32 elements would end the process.
func TestAShuffleBufferIsNotLargerThanItsInput(t *testing.T) {
	for _, c := range []struct {
		name  string
		asked int64
		want  int64
	}{{"map_batch", 1 << 39, 100}, {"records", 1 << 39, graph.MaxShuffleBuffer}, {"endless", 1 << 39, 30}} {
		data := graphtest.Changed(t, c.name, func(d *tf.GraphDef) { graphtest.SetConst(t, d, graphtest.OfOp(t, d, "ShuffleDatasetV3"), 1, c.asked) })
		g, err := graph.Parse(data, graph.Limits{})
		if err != nil {
			t.Fatal(err)
		}
		graphs, err := rewrite.Instantiate(g, graphtest.Plan(t, g, graphtest.Once, 0), rewrite.At{Mode: graphtest.Once.Mode})
		if err != nil {
			t.Fatal(err)
		}
		def := graphtest.Decode(t, graphs.A)
		if size := graphtest.Number(t, def, graphtest.OfOp(t, def, "ShuffleDatasetV3"), 1); size != c.want {
			t.Errorf("%s: the buffer has %d elements, want %d", c.name, size, c.want)
		}
	}
}

func TestInstantiateIsSafeForConcurrentUse(t *testing.T) {
	g := graphtest.Parse(t, "nested_shuffle")
	p := graphtest.Plan(t, g, graphtest.Once, 0)
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			if _, err := rewrite.Instantiate(g, p, rewrite.At{Stream: i % int(p.NumStreams), Mode: graphtest.Once.Mode}); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
}

func TestParallelStepsKeepTheirOrder(t *testing.T) {
	for _, c := range []struct {
		mode pecanv1.Mode
		want string
	}{{pecanv1.Mode_MODE_EXACTLY_ONCE, "true"}, {pecanv1.Mode_MODE_DETERMINISTIC, "true"}, {pecanv1.Mode_MODE_AT_LEAST_ONCE, "false"}} {
		def := graphtest.Stream(t, "map_batch", rewrite.At{Mode: c.mode})
		if got := string(graphtest.OfOp(t, def, "ParallelMapDatasetV2").GetAttr()["deterministic"].GetS()); got != c.want {
			t.Errorf("%v: deterministic is %q, want %q", c.mode, got, c.want)
		}
	}
	def := graphtest.Stream(t, "options", rewrite.At{})
	for _, n := range def.GetNode() {
		if o, ok := graph.ReadOptions(n); ok && n.GetName() != "pecan_options" && o.GetOptionalDeterministic() != nil {
			t.Error("the options still allow another order of elements")
		}
	}
}

func TestAStreamKeepsTheOptionsOfTheUserAndAddsItsOwn(t *testing.T) {
	def := graphtest.Stream(t, "range", rewrite.At{Threads: 5, RAMBudget: 1 << 20})
	o, _ := graph.ReadOptions(graphtest.Named(t, def, "pecan_options"))
	if o.GetThreadingOptions().GetPrivateThreadpoolSize() != 5 || o.GetAutotuneOptions().GetRamBudget() != 1<<20 {
		t.Errorf("options %v", o)
	}
	if o.GetOptimizationOptions().GetOptionalMapAndBatchFusion() == nil || o.GetOptimizationOptions().GetMapAndBatchFusion() {
		t.Error("maps may be fused with batches")
	}
	if o.GetOptionalDeterministic() != nil {
		t.Error("the options require an order, which would serialise parallel random steps")
	}
	def = graphtest.Stream(t, "options", rewrite.At{Threads: 5})
	o, _ = graph.ReadOptions(graphtest.Named(t, def, "pecan_options"))
	if o.GetThreadingOptions() != nil {
		t.Error("the user's thread pool is overridden")
	}
	def = graphtest.Stream(t, "range", rewrite.At{Mode: pecanv1.Mode_MODE_DETERMINISTIC})
	if o, _ = graph.ReadOptions(graphtest.Named(t, def, "pecan_options")); !o.GetDeterministic() {
		t.Error("deterministic mode does not require an order")
	}
}

func TestEachStreamHasSeparateCacheFiles(t *testing.T) {
	def := graphtest.Stream(t, "cache_file", rewrite.At{Stream: 2})
	path, _ := nodedef.Strings(graphtest.Named(t, def, graphtest.OfOp(t, def, "CacheDatasetV2").GetInput()[1]))
	if string(path[0]) != "/cache/file.stream-2-of-5" {
		t.Errorf("path %q", path)
	}
	if !graphtest.HasOp(def, "RepeatDataset") {
		t.Error("the repeat after the cache is missing")
	}
	if graphtest.HasOp(graphtest.Stream(t, "endless", rewrite.At{}), "RepeatDataset") {
		t.Error("the outer repeat, which became epochs, is still there")
	}
}

func TestStreamsDoNotAssertTheCardinality(t *testing.T) {
	if graphtest.HasOp(graphtest.Stream(t, "assert_cardinality", rewrite.At{}), "AssertCardinalityDataset") {
		t.Error("a stream asserts the cardinality of the whole dataset")
	}
}

func TestShardHintsAreReplaced(t *testing.T) {
	g := graphtest.Parse(t, "hint")
	p := graphtest.Plan(t, g, graphtest.Sharded(pecanv1.Sharding_SHARDING_HINT), 3)
	graphs, err := rewrite.Instantiate(g, p, rewrite.At{Stream: 2, Mode: graphtest.Once.Mode})
	if err != nil {
		t.Fatal(err)
	}
	def := graphtest.Decode(t, graphs.A)
	n := graphtest.OfOp(t, def, "ShardDataset")
	if graphtest.Number(t, def, n, 1) != 3 || graphtest.Number(t, def, n, 2) != 2 {
		t.Errorf("shard %d of %d", graphtest.Number(t, def, n, 2), graphtest.Number(t, def, n, 1))
	}
}

func TestTheLastClosingStreamOfAPlanWithACarrySendsOnlyFullBatches(t *testing.T) {
	g := graphtest.Parse(t, "map_filter_batch")
	plan := graphtest.Plan(t, g, graphtest.Once, 0)
	for _, carry := range []bool{false, true} {
		plan.Carry = carry
		plan.Hash = split.PlanHash(plan)
		for _, stream := range []int{0, split.LastStream(plan)} {
			graphs, err := rewrite.Instantiate(g, plan, rewrite.At{Stream: stream, Source: 42, Mode: plan.Mode})
			if err != nil {
				t.Fatal(err)
			}
			def := graphtest.Decode(t, graphs.A)
			batch := graphtest.OfOp(t, def, "BatchDatasetV2")
			dropped, _ := nodedef.Ints(graphtest.Named(t, def, batch.GetInput()[2]))
			if want := carry && stream > 0; (dropped[0] != 0) != want {
				t.Errorf("carry %v, stream %d: drop_remainder is %v, want %v", carry, stream, dropped[0] != 0, want)
			}
		}
	}
}

func TestStreamsKeepRemaindersAndTheClosingStreamJoinsThem(t *testing.T) {
	def := graphtest.Stream(t, "filter_batch", rewrite.At{Stream: 0})
	batch := graphtest.OfOp(t, def, "BatchDatasetV2")
	if keep, _ := nodedef.Ints(graphtest.Named(t, def, batch.GetInput()[2])); keep[0] != 0 {
		t.Error("a stream drops its remainder")
	}
	for _, op := range []string{"BatchDatasetV2", "PrefetchDataset", "OptionsDataset"} {
		if size := graphtest.OfOp(t, def, op).GetAttr()["output_shapes"].GetList().GetShape()[0].GetDim()[0].GetSize(); size != -1 {
			t.Errorf("%s has output batches of %d", op, size)
		}
	}
	closing := graphtest.Stream(t, "filter_batch", rewrite.At{Stream: 16, Source: 42})
	batch = graphtest.OfOp(t, closing, "BatchDatasetV2")
	if drop, _ := nodedef.Ints(graphtest.Named(t, closing, batch.GetInput()[2])); drop[0] != 1 {
		t.Error("the closing stream ignores drop_remainder")
	}
	if graphtest.Named(t, closing, batch.GetInput()[0]).GetOp() != "FlatMapDataset" || graphtest.HasOp(closing, "FilterDataset") {
		t.Error("the closing stream does not start with the remainders")
	}
	checkPull(t, closing, 42)
}

func TestStepsAfterTheBatchAreASecondGraph(t *testing.T) {
	g := graphtest.Parse(t, "filter_batch_map")
	p := graphtest.Plan(t, g, graphtest.Once, 0)
	graphs, err := rewrite.Instantiate(g, p, rewrite.At{Stream: 1, Mode: graphtest.Once.Mode, Source: 7})
	if err != nil {
		t.Fatal(err)
	}
	a, b := graphtest.Decode(t, graphs.A), graphtest.Decode(t, graphs.B)
	if !graphtest.HasOp(a, "FilterDataset") || !graphtest.HasOp(a, "BatchDatasetV2") || graphtest.HasOp(a, "MapDataset") {
		t.Error("graph A is not the part up to the batch")
	}
	if graphtest.HasOp(b, "FilterDataset") || graphtest.HasOp(b, "BatchDatasetV2") {
		t.Error("graph B is not the part after the batch")
	}
	checkPull(t, b, 7)
	closing, err := rewrite.Instantiate(g, p, rewrite.At{Stream: 16, Mode: graphtest.Once.Mode, Source: 8})
	if err != nil {
		t.Fatal(err)
	}
	c := graphtest.Decode(t, closing.A)
	if closing.B != nil || !graphtest.HasOp(c, "FlatMapDataset") || !graphtest.HasOp(c, "BatchDatasetV2") || graphtest.HasOp(c, "FilterDataset") {
		t.Error("the closing stream is not a single graph from the remainders to the result")
	}
	checkPull(t, c, 8)
}

// checkPull compares the source op with the one that the worker registers.
func checkPull(t *testing.T, def *tf.GraphDef, source int64) {
	t.Helper()
	n := graphtest.Named(t, def, "pecan_pull")
	if n.GetOp() != "MapDataset" || n.GetAttr()["preserve_cardinality"].GetB() {
		t.Errorf("source %v", n)
	}
	for _, f := range def.GetLibrary().GetFunction() {
		if f.GetSignature().GetName() != n.GetAttr()["f"].GetFunc().GetName() {
			continue
		}
		pull := f.GetNodeDef()[0]
		types := pull.GetAttr()["output_types"].GetList().GetType()
		if pull.GetOp() != rewrite.PullOp || pull.GetAttr()["source"].GetI() != source || len(types) != 1 || types[0] != tf.DataType_DT_INT64 {
			t.Errorf("source op %v", pull)
		}
		if !f.GetSignature().GetIsStateful() || len(f.GetSignature().GetOutputArg()) != 1 || len(f.GetControlRet()) != 1 {
			t.Errorf("function %v", f.GetSignature())
		}
		return
	}
	t.Error("the source has no function")
}

func TestResourcesAreNamedByTheirContent(t *testing.T) {
	names := func(def *tf.GraphDef) []string {
		return []string{
			string(graphtest.OfOp(t, def, "VarHandleOp").GetAttr()["shared_name"].GetS()),
			string(graphtest.OfOp(t, def, "HashTableV2").GetAttr()["shared_name"].GetS()),
		}
	}
	first := names(graphtest.Stream(t, "lookup", rewrite.At{}))
	other := graphtest.Changed(t, "lookup", func(d *tf.GraphDef) {
		value := graphtest.Named(t, d, graphtest.OfOp(t, d, "AssignVariableOp").GetInput()[1]).Attr["value"].GetTensor()
		value.Int64Val = []int64{6}
	})
	g, err := graph.Parse(other, graph.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	graphs, err := rewrite.Instantiate(g, graphtest.Plan(t, g, graphtest.Once, 0), rewrite.At{Mode: graphtest.Once.Mode})
	if err != nil {
		t.Fatal(err)
	}
	second := names(graphtest.Decode(t, graphs.A))
	if first[0] == second[0] || first[0] == "" {
		t.Errorf("two values of a variable share the name %q", first[0])
	}
	if first[1] != second[1] || first[1] == "" {
		t.Errorf("one table has the names %q and %q", first[1], second[1])
	}
}

func TestEveryStreamIsTheWholeDatasetWithShardingOff(t *testing.T) {
	g := graphtest.Parse(t, "map_batch")
	p := graphtest.Plan(t, g, &pecanv1.JobOptions{Mode: pecanv1.Mode_MODE_OFF}, 0)
	graphs, err := rewrite.Instantiate(g, p, rewrite.At{Stream: 40, Mode: pecanv1.Mode_MODE_OFF})
	if err != nil {
		t.Fatal(err)
	}
	def := graphtest.Decode(t, graphs.A)
	if graphtest.Number(t, def, graphtest.OfOp(t, def, "ShuffleDatasetV3"), 1) != 40 || graphtest.Number(t, def, graphtest.OfOp(t, def, "RangeDataset"), 2) != 1 {
		t.Error("the dataset is divided")
	}
}

func TestOriginalNodeFindsTheNodeOfTheRegisteredGraph(t *testing.T) {
	for name, want := range map[string]string{
		"MapDataset/_3": "MapDataset/_3", "pecan_cut/FilterDataset/_4/shard": "FilterDataset/_4", "pecan_pull/range": "", "pecan_options": "",
	} {
		if got := rewrite.OriginalNode(name); got != want {
			t.Errorf("%s has the original %q, want %q", name, got, want)
		}
	}
}

// sealed sets the hash of a changed plan.
func sealed(p *pecanv1.Plan) *pecanv1.Plan {
	p.Hash = split.PlanHash(p)
	return p
}
