package extents_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/proto/reason"
	tf "github.com/pecan-ml/pecan/proto/tensorflow"
	"github.com/pecan-ml/pecan/service/graph"
	"github.com/pecan-ml/pecan/service/graph/analysis"
	"github.com/pecan-ml/pecan/service/graph/extents"
	"github.com/pecan-ml/pecan/service/graph/graphtest"
	"github.com/pecan-ml/pecan/service/graph/nodedef"
	"github.com/pecan-ml/pecan/service/graph/rewrite"
	"github.com/pecan-ml/pecan/service/graph/split"
)

func masked(b []byte) uint32 {
	c := crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli))
	return (c>>15 | c<<17) + 0xa282ead8
}

// recordFile returns the bytes of a TFRecord file and the offsets of its records.
func recordFile(lengths ...int) ([]byte, []int64) {
	var out []byte
	var offsets []int64
	for i, n := range lengths {
		offsets = append(offsets, int64(len(out)))
		data := bytes.Repeat([]byte{byte(i)}, n)
		out = binary.LittleEndian.AppendUint64(out, uint64(n))
		out = binary.LittleEndian.AppendUint32(out, masked(out[len(out)-8:]))
		out = binary.LittleEndian.AppendUint32(append(out, data...), masked(data))
	}
	return out, offsets
}

func write(t *testing.T, data []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "file.tfrecord")
	if err := os.WriteFile(path, data, 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

func mixedLengths(n int) []int {
	lengths := make([]int, n)
	for i := range lengths {
		lengths[i] = []int{0, 1, 7, 300, 20_000, 70_000, 65_536 - 16}[i*i%7]
	}
	return lengths
}

// records returns the dataset of the test data that reads record files, with other files.
func records(t *testing.T, change func(*tf.GraphDef), files ...string) *graph.Graph {
	t.Helper()
	return listing(t, "records", change, files...)
}

// listing returns a dataset of the test data with other files.
func listing(t *testing.T, name string, change func(*tf.GraphDef), files ...string) *graph.Graph {
	t.Helper()
	def := graphtest.Decode(t, graphtest.Read(t, name))
	for _, n := range def.GetNode() {
		if v := n.GetAttr()["value"].GetTensor(); v.GetDtype() == tf.DataType_DT_STRING && len(v.GetTensorShape().GetDim()) == 1 {
			values := &tf.TensorProto{Dtype: tf.DataType_DT_STRING, TensorShape: nodedef.Shape(int64(len(files)))}
			for _, f := range files {
				values.StringVal = append(values.StringVal, []byte(f))
			}
			n.Attr = nodedef.Const("", values).GetAttr()
		}
	}
	if change != nil {
		change(def)
	}
	g, err := graph.Parse(graphtest.Encode(t, def), graph.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	return g
}

func TestLargeRecordFilesAreReadInExtents(t *testing.T) {
	long, offsets := recordFile(slices.Repeat([]int{50_000}, 1000)...)
	short, _ := recordFile(10, 20, 30)
	first, second := write(t, long), write(t, short)
	data, n, _ := extents.Divide(t.Context(), records(t, nil, first, second))
	g, err := graph.Parse(data, graph.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	list := g.Node("TensorSliceDataset/_1")
	names, _ := nodedef.Strings(g.Node(list.GetInput()[0]))
	starts, _ := nodedef.Ints(g.Node(list.GetInput()[1]))
	counts, _ := nodedef.Ints(g.Node(list.GetInput()[2]))
	// 32 records of 50 kB are the first power of two above 1 MiB.
	if n != 33 || len(names) != n || len(starts) != n || len(counts) != n {
		t.Fatalf("%d extents: %d names, %d offsets, %d counts", n, len(names), len(starts), len(counts))
	}
	for i := range 32 {
		if string(names[i]) != first || starts[i] != offsets[32*i] || counts[i] != int64(min(32, 1000-32*i)) {
			t.Errorf("extent %d: %d records of %s from byte %d on", i, counts[i], names[i], starts[i])
		}
	}
	if string(names[32]) != second || starts[32] != 0 || counts[32] != 3 {
		t.Errorf("the short file: %d records of %s from byte %d on", counts[32], names[32], starts[32])
	}
	again, _, _ := extents.Divide(t.Context(), records(t, nil, first, second))
	if !bytes.Equal(data, again) {
		t.Error("the same files give another graph")
	}
}

func TestDatasetsThatAreNotDividedIntoExtents(t *testing.T) {
	long, _ := recordFile(slices.Repeat([]int{50_000}, 200)...)
	short, _ := recordFile(10, 20, 30)
	large, small := write(t, long), write(t, short)
	compressed := func(def *tf.GraphDef) {
		for _, f := range def.GetLibrary().GetFunction() {
			for _, n := range f.GetNodeDef() {
				if n.GetName() == "compression_type" {
					nodedef.Tensor(n).StringVal = [][]byte{[]byte("GZIP")}
				}
			}
		}
	}
	for name, g := range map[string]*graph.Graph{
		"a small file":       records(t, nil, small),
		"a compressed file":  records(t, compressed, large),
		"one damaged file":   records(t, nil, large, write(t, long[:len(long)-1])),
		"many files":         records(t, nil, slices.Repeat([]string{large}, 64)...),
		"missing files":      graphtest.Parse(t, "records"),
		"no files":           graphtest.Parse(t, "slices"),
		"interleaved files":  graphtest.Parse(t, "cached_records"),
		"enumerated, absent": graphtest.Parse(t, "enumerate_records"),
	} {
		if data, n, _ := extents.Divide(t.Context(), g); data != nil || n != 0 {
			t.Errorf("%s: %s", name, fmt.Sprint(n, " extents"))
		}
	}
	if data, _, err := extents.Divide(t.Context(), records(t, nil, large)); err != nil || data == nil {
		t.Error("the large file alone is not divided")
	}
}

func TestBatchesOfExtentsAreThoseOfALocalRun(t *testing.T) {
	long, _ := recordFile(slices.Repeat([]int{50_000}, 1000)...)
	short, _ := recordFile(10, 20, 30)
	first, second := write(t, long), write(t, short)
	// The dataset has a shuffle and a batch of 8 downstream of the records. An extent has 32 records.
	for name, c := range map[string]struct {
		files    []string
		size     int64
		strategy pecanv1.BatchStrategy
		block    int64
		card     int64
	}{
		"an extent is four batches":     {[]string{first}, 8, pecanv1.BatchStrategy_BATCH_STRATEGY_EXACT, 1, 125},
		"three extents are two batches": {[]string{first}, 48, pecanv1.BatchStrategy_BATCH_STRATEGY_EXACT, 3, 21},
		"a short extent in the middle":  {[]string{second, first, second}, 48, pecanv1.BatchStrategy_BATCH_STRATEGY_EXACT, 3, 21},
	} {
		data, _, _ := extents.Divide(t.Context(), records(t, func(def *tf.GraphDef) {
			nodes := map[string]*tf.NodeDef{}
			for _, n := range def.GetNode() {
				nodes[n.GetName()] = n
			}
			for _, n := range def.GetNode() {
				if n.GetOp() == "BatchDatasetV2" {
					size := nodes[n.GetInput()[1]]
					size.Attr = nodedef.Int64Const("", c.size).GetAttr()
				}
			}
		}, c.files...))
		g, err := graph.Parse(data, graph.Limits{})
		if err != nil {
			t.Fatal(err)
		}
		plan := graphtest.Plan(t, g, graphtest.Once, 0)
		cut := plan.GetCut()
		if cut.GetKind() != pecanv1.Cut_FILES {
			t.Errorf("%s: the cut is at %v", name, cut.GetKind())
		}
		if plan.BatchStrategy != c.strategy || cut.GetBlock() != c.block || plan.Cardinality != c.card || !slices.Equal(cut.GetEdges(), []string{"TensorSliceDataset/_1"}) {
			t.Errorf("%s: %v, %v, %d elements", name, plan.BatchStrategy, cut, plan.Cardinality)
		}
	}
}

// sparse returns the name of a record file whose data are holes. It has the index and the size of real records.
func sparse(t *testing.T, records, length int) string {
	t.Helper()
	f, err := os.Create(filepath.Join(t.TempDir(), "file.tfrecord"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	header := binary.LittleEndian.AppendUint64(nil, uint64(length))
	header = binary.LittleEndian.AppendUint32(header, masked(header))
	for i := range records {
		if _, err := f.WriteAt(header, int64(i)*int64(length+16)); err != nil {
			t.Fatal(err)
		}
	}
	if err := f.Truncate(int64(records) * int64(length+16)); err != nil {
		t.Fatal(err)
	}
	return f.Name()
}

func divided(t *testing.T, g *graph.Graph) *graph.Graph {
	t.Helper()
	data, _, _ := extents.Divide(t.Context(), g)
	out, err := graph.Parse(data, graph.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func TestTheNumberOfStreamsFollowsTheBytesOfTheFiles(t *testing.T) {
	g := divided(t, records(t, nil, sparse(t, 1000, 1<<20), sparse(t, 300, 1<<20)))
	plan, err := split.MakePlan(g, &pecanv1.JobOptions{Mode: graphtest.ExactlyOnce}, split.Env{FileBytes: 640 << 20})
	if err != nil {
		t.Fatal(err)
	}
	if plan.NumStreams != 20 || !strings.Contains(plan.StreamsWhy, "the files have 640 MB") {
		t.Errorf("%d streams: %s", plan.NumStreams, plan.StreamsWhy)
	}
	seen := map[string]int{}
	for s := range 20 {
		for _, name := range split.Files(g, plan, split.EpochStream{Stream: s, Epoch: 1, Seed: 7}) {
			seen[name]++
		}
	}
	if len(seen) != 2 || slices.Max(slices.Collect(maps.Values(seen))) > 20 {
		t.Errorf("a stream names a file once for all of its extents: %v", seen)
	}
}

func TestShardingFileReadsWholeFiles(t *testing.T) {
	g := divided(t, records(t, nil, sparse(t, 100, 1<<20), sparse(t, 30, 1<<20), sparse(t, 50, 1<<20)))
	options := graphtest.Sharded(pecanv1.Sharding_SHARDING_FILE)
	plan, err := split.MakePlan(g, options, split.Env{})
	if err != nil {
		t.Fatal(err)
	}
	if plan.NumStreams != 3 || !plan.Cut.WholeFiles || plan.Cut.Kind != pecanv1.Cut_FILES || plan.StreamsWhy != "Each of the 3 files has a stream of its own." {
		t.Errorf("plan %v", plan)
	}
	seen := map[string]bool{}
	for s := range 3 {
		names := split.Files(g, plan, split.EpochStream{Stream: s, Epoch: 1, Seed: 7})
		if len(names) != 1 || seen[names[0]] {
			t.Errorf("stream %d reads %v", s, names)
		}
		seen[names[0]] = true
	}
	if _, err := split.MakePlan(g, options, split.Env{StaticWorkers: 4}); !reason.Is(err, reason.ShardingFiles) || !strings.Contains(err.Error(), "the dataset has 3") {
		t.Errorf("4 workers for 3 files: %v", err)
	}
	if plan, err = split.MakePlan(g, options, split.Env{StaticWorkers: 2}); err != nil || plan.NumStreams != 2 {
		t.Errorf("2 workers for 3 files: %v, %v", plan, err)
	}
}

// Extents end at the multiples of their number of records from the first file on. So the planner can count over all
// files.
func TestExtentsOfSeveralFilesEndAtCommonMultiples(t *testing.T) {
	files := []string{sparse(t, 5, 300<<10), sparse(t, 1, 300<<10), sparse(t, 100, 300<<10), sparse(t, 0, 1), sparse(t, 7, 300<<10)}
	g := divided(t, records(t, nil, files...))
	counts, _ := nodedef.Ints(g.Node(g.Node("TensorSliceDataset/_1").GetInput()[2]))
	// 4 records have at least 1 MiB.
	want := slices.Concat([]int64{4, 1, 1, 2}, slices.Repeat([]int64{4}, 24), []int64{2, 2, 4, 1})
	if !slices.Equal(counts, want) {
		t.Errorf("extents of %v records, want %v", counts, want)
	}
	root, _ := g.Steps()
	a := analysis.New(g)
	root.Walk(func(s *graph.Step) {
		if !a.ReadsExtents(s) {
			return
		}
		each, total, ok := a.Extents(s)
		starts := slices.Concat([]int64{0, 1}, counting(4, 25), []int64{30, 31})
		if each != 4 || total != 113 || !ok || !slices.Equal(a.ExtentBlocks(s), starts) {
			t.Errorf("%d of %d records, %v, from the extents %v on, want %v", each, total, ok, a.ExtentBlocks(s), starts)
		}
	})
}

// A stream that visited the blocks of other streams in an enumeration would visit all of its numbers.
func TestAnEnumerationInLargeBlocksSkipsTheBlocksOfOtherStreams(t *testing.T) {
	// 16,384 records have at least 1 MiB.
	g := divided(t, listing(t, "enumerate_records", nil, sparse(t, 300_000, 100)))
	plan, err := split.MakePlan(g, &pecanv1.JobOptions{Mode: graphtest.ExactlyOnce, Streams: 17}, split.Env{})
	if err != nil {
		t.Fatal(err)
	}
	graphs, err := rewrite.Instantiate(g, plan, rewrite.At{Stream: 15, Seed: 7, Mode: graphtest.ExactlyOnce, Source: -1, Threads: 1})
	if err != nil {
		t.Fatal(err)
	}
	if plan.NumStreams != 17 || plan.Cut.Block != 16_384 || graphtest.HasOp(graphtest.Decode(t, graphs.A), "WindowDataset") {
		t.Errorf("%d streams, blocks of %d, and perhaps a window over all numbers", plan.NumStreams, plan.Cut.Block)
	}
}

func counting(first, n int64) (all []int64) {
	for i := range n {
		all = append(all, first+i)
	}
	return all
}

func TestExtentsAreRecognisedByTheAssertionInTheirFunction(t *testing.T) {
	g := divided(t, records(t, nil, sparse(t, 64, 1<<20)))
	plain, err := g.Serialized()
	if err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(f *tf.FunctionDef){
		"an assertion of another number": func(f *tf.FunctionDef) {
			for _, n := range f.GetNodeDef() {
				if n.GetOp() == "AssertCardinalityDataset" {
					n.Input[1] = "pecan_offset"
				}
			}
		},
		"no assertion": func(f *tf.FunctionDef) {
			for _, n := range f.GetNodeDef() {
				if n.GetOp() == "AssertCardinalityDataset" {
					n.Op = "TakeDataset"
				}
			}
		},
	} {
		def := graphtest.Decode(t, plain)
		for _, f := range def.GetLibrary().GetFunction() {
			if strings.HasPrefix(f.GetSignature().GetName(), "pecan_extents_") {
				change(f)
			}
		}
		changed, err := graph.Parse(graphtest.Encode(t, def), graph.Limits{})
		if err != nil {
			t.Fatal(err)
		}
		if plan := graphtest.Plan(t, changed, graphtest.Once, 0); plan.Cardinality != -2 || plan.BatchStrategy == pecanv1.BatchStrategy_BATCH_STRATEGY_EXACT {
			t.Errorf("%s: the plan counts %d elements, with batches %v", name, plan.Cardinality, plan.BatchStrategy)
		}
	}
}
