package cachefill

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/pecan-ml/pecan/service/graph/rewrite"
	"github.com/pecan-ml/pecan/service/graph/split"

	"github.com/pecan-ml/pecan/native/tf"
	"github.com/pecan-ml/pecan/proto/frame"
	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/cache"
	"github.com/pecan-ml/pecan/service/graph"
	"github.com/pecan-ml/pecan/service/worker/dataset"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// The segment breaks off, and the dataset cannot be computed at first. Later pulls continue after the delivered
// elements.
func TestAFailedRecomputationIsRetriedAfterTheDeliveredElements(t *testing.T) {
	d, runtime := directory(t)
	o, graphs := cached(t)
	again := func(given uint64) *Source {
		s := &Source{
			Directory: d, Action: &pecanv1.CacheAction{Key: o.GetCache().GetKey()}, Step: o.GetCache(), Streams: uint32(o.GetNumStreams()),
			Lease: 1, Context: t.Context(), Log: d.Log, delivered: given,
		}
		t.Cleanup(s.Close)
		return s
	}
	upstream := func() (*tf.Iterator, func(), error) {
		types, err := dataset.OutputTypes(graphs.UpstreamOfCache)
		if err != nil {
			return nil, nil, err
		}
		it, err := runtime.NewIterator(graphs.UpstreamOfCache, types)
		if err != nil {
			return nil, nil, err
		}
		return it, it.Close, nil
	}
	writing := again(0)
	if err := writing.Begin(graphs, upstream); err != nil {
		t.Fatal(err)
	}
	const given = 10
	want := numbers(t, writing)[given:]
	segment := writing.written.Load()
	if segment == nil {
		t.Fatal("no segment was written")
	}
	k := again(given)
	k.Action.Segment = segment
	broken := errors.New("no graph")
	failing := true
	if err := k.Begin(graphs, func() (*tf.Iterator, func(), error) {
		if failing {
			return nil, nil, broken
		}
		return upstream()
	}); err != nil {
		t.Fatal(err)
	}
	if err := k.reader.Close(); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if got, err := k.Pull(); !errors.Is(err, broken) {
			t.Fatalf("%v, %v", got, err)
		}
	}
	failing = false
	if got := numbers(t, k); len(want) == 0 || !slices.Equal(got, want) {
		t.Errorf("it goes on with %v, want %v", got, want)
	}
}

// directory is a cache directory, and a runtime for the upstream graphs.
func directory(t *testing.T) (*Directory, *tf.Context) {
	t.Helper()
	d, err := Open(filepath.Join(t.TempDir(), "cache"), 0)
	if err != nil {
		t.Fatal(err)
	}
	d.Worker = "w"
	d.Log, d.Send, d.Running, d.Cluster = slog.New(slog.DiscardHandler), func(...*pecanv1.WorkerMessage) {}, new(sync.WaitGroup), func() string { return "c" }
	runtime, err := tf.NewContext(tf.ContextOptions{InterOpThreads: 2, IntraOpThreads: 2})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(runtime.Close)
	return d, runtime
}

// cached is a dataset with a cached step, and the graphs of its first stream.
func cached(t *testing.T) (*pecanv1.Plan, *rewrite.StreamGraphs) {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("..", "..", "graph", "testdata", "cached.pb"))
	if err != nil {
		t.Fatal(err)
	}
	parsed, err := graph.Parse(data, graph.PeerLimits())
	if err != nil {
		t.Fatal(err)
	}
	plan, err := split.MakePlan(parsed, &pecanv1.JobOptions{}, split.Env{})
	if err != nil || plan.GetCache() == nil {
		t.Fatal(plan.GetReasons(), err)
	}
	graphs, err := rewrite.Instantiate(parsed, plan, rewrite.At{Epoch: 1, Mode: plan.GetMode(), Source: -1, Cached: plan.GetCache(), CacheSource: 1, Job: "job"})
	if err != nil {
		t.Fatal(err)
	}
	return plan, graphs
}

// numbers pulls all elements and returns their numbers.
func numbers(t *testing.T, k *Source) (all []uint64) {
	t.Helper()
	for {
		tensors, err := k.Pull()
		if errors.Is(err, io.EOF) {
			return all
		}
		if err != nil {
			t.Fatal(err)
		}
		for data := tensors[0].Data(); len(data) > 0; data = data[8:] {
			all = append(all, binary.LittleEndian.Uint64(data))
		}
		tf.ReleaseAll(tensors)
	}
}

// TestEveryDtypeSurvivesASegment takes elements of all dtypes and shapes through a segment and compares the bytes of their tensors.
func TestEveryDtypeSurvivesASegment(t *testing.T) {
	d, runtime := directory(t)
	for _, name := range []string{"dtypes", "strings", "mixed"} {
		serialised, err := os.ReadFile(filepath.Join("..", "..", "..", "native", "tf", "testdata", name+".graph"))
		if err != nil {
			t.Fatal(err)
		}
		types, err := dataset.OutputTypes(serialised)
		if err != nil {
			t.Fatal(err)
		}
		it, err := runtime.NewIterator(serialised, types)
		if err != nil {
			t.Fatal(err)
		}
		from := &upstream{it: it}
		id := cache.ID{Key: "k"}
		writer, err := d.dir.Create(cache.Name("c", "k", 0, 1, d.runs.Add(1), "w"), id, true)
		if err != nil {
			t.Fatal(err)
		}
		var want []string
		for {
			got, err := from.next()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			if err := writer.Append(&got.chunk); err != nil {
				t.Fatal(err)
			}
			want = append(want, inWords(got.tensors))
			tf.ReleaseAll(got.tensors)
		}
		it.Close()
		segment, err := writer.Commit()
		if err != nil {
			t.Fatal(err)
		}
		reader, err := d.dir.Open(segment)
		if err != nil {
			t.Fatal(err)
		}
		var table frame.Table
		for i := 0; ; i++ {
			chunk, err := reader.Next()
			if errors.Is(err, io.EOF) {
				if i != len(want) || i == 0 {
					t.Errorf("%s: %d elements of %d", name, i, len(want))
				}
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			tensors, err := tensorsOf(&chunk, &table)
			if err != nil {
				t.Fatal(err)
			}
			if got := inWords(tensors); got != want[i] {
				t.Errorf("%s: element %d is %.300s, was %.300s", name, i, got, want[i])
			}
			tf.ReleaseAll(tensors)
		}
		if err := reader.Close(); err != nil {
			t.Error(err)
		}
	}
}

func inWords(tensors []*tf.Tensor) string {
	var out strings.Builder
	for _, tensor := range tensors {
		data := tensor.Data()
		if tensor.DType() == tf.String {
			data = make([]byte, tensor.WireSize())
			tensor.PackStrings(data)
		}
		fmt.Fprintf(&out, "%d %v %x;", tensor.DType(), tensor.Dims(), data)
	}
	return out.String()
}

func TestTheDigestOfSourcesChangesWithTheirFiles(t *testing.T) {
	file := filepath.Join(t.TempDir(), "data")
	if err := os.WriteFile(file, []byte("one"), 0o600); err != nil {
		t.Fatal(err)
	}
	before := digest([]string{file, "no file"})
	if digest([]string{"no file", file, "nor this"}) != before {
		t.Error("strings that name no file count")
	}
	if err := os.WriteFile(file, []byte("three"), 0o600); err != nil {
		t.Fatal(err)
	}
	if digest([]string{file}) == before {
		t.Error("a file that changed goes unseen")
	}
}
