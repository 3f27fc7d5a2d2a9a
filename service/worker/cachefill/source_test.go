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
	"google.golang.org/protobuf/proto"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// computed runs the steps upstream of a cached step in iterators of their own.
type computed struct {
	runtime *tf.Context
	graphs  func(part uint32) (*rewrite.StreamGraphs, error)
	// failing is the error of each opening. written are the parts whose graphs were written. opened are those that were
	// opened. alone counts the parts that were alone.
	failing error
	written []uint32
	opened  []uint32
	alone   int
	// kept are kept back at the end of the next part.
	kept [][]*tf.Tensor
	// shared, if not nil, opens parts that are not opened alone.
	shared func() (*tf.Iterator, func(), error)
}

func (c *computed) Graphs(part uint32) (*rewrite.StreamGraphs, error) {
	c.written = append(c.written, part)
	return c.graphs(part)
}

func (c *computed) KeptBack() (kept [][]*tf.Tensor) {
	kept, c.kept = c.kept, nil
	return kept
}

func (c *computed) Open(part uint32, graphs *rewrite.StreamGraphs, alone bool) (*tf.Iterator, func(), error) {
	if c.failing != nil {
		return nil, nil, c.failing
	}
	c.opened = append(c.opened, part)
	if alone {
		c.alone++
	} else if c.shared != nil {
		return c.shared()
	}
	return open(c.runtime, graphs.UpstreamOfCache)
}

// open makes the iterator of a graph, and the function that closes it.
func open(runtime *tf.Context, serialised []byte) (*tf.Iterator, func(), error) {
	types, err := dataset.OutputTypes(serialised)
	if err != nil {
		return nil, nil, err
	}
	it, err := runtime.NewIterator(serialised, types)
	if err != nil {
		return nil, nil, err
	}
	return it, it.Close, nil
}

// source makes the source of a stream that reads segments.
func source(t *testing.T, d *Directory, plan *pecanv1.Plan, whole *rewrite.StreamGraphs, segments []*pecanv1.CacheSegment) *Source {
	t.Helper()
	all := split.AllParts(plan, plan.GetCache())
	s := &Source{
		Directory: d, Action: &pecanv1.CacheAction{Key: plan.GetCache().GetKey(), Step: plan.GetCache(), Segments: segments, WrittenBelow: all},
		Stream: whole, AllParts: all, Lease: 1, Lends: true, Context: t.Context(), Log: d.Log,
	}
	t.Cleanup(s.Close)
	return s
}

// writtenBy returns the durable segments of a source that are not reported.
func writtenBy(s *Source) []*pecanv1.CacheSegment {
	s.settle(s.Directory.commitWait)
	s.reports.mu.Lock()
	defer s.reports.mu.Unlock()
	written := s.reports.unreported
	s.reports.unreported = nil
	return written
}

func begin(t *testing.T, s *Source, from Upstream) {
	t.Helper()
	if err := s.Begin(from); err != nil {
		t.Fatal(err)
	}
}

// The segment breaks off, and the dataset cannot be computed at first. Later pulls continue after the delivered
// elements.
func TestAFailedRecomputationIsRetriedAfterTheDeliveredElements(t *testing.T) {
	d, runtime := directory(t)
	plan, whole, graphs := cached(t)
	parts := whole.Parts
	from := &computed{runtime: runtime, graphs: graphs}
	writing := source(t, d, plan, whole, nil)
	begin(t, writing, from)
	const given = 2
	want := numbers(t, writing)[given:]
	segments := writtenBy(writing)
	if len(segments) != len(parts) || len(parts) < 3 {
		t.Fatalf("%d segments of %d parts were written", len(segments), len(parts))
	}
	k := source(t, d, plan, whole, segments)
	begin(t, k, from)
	k.delivered, from.failing = given, errors.New("no graph")
	if err := k.reader.Close(); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if got, err := k.Pull(); !errors.Is(err, from.failing) {
			t.Fatalf("%v, %v", got, err)
		}
	}
	from.failing = nil
	if got := numbers(t, k); len(want) == 0 || !slices.Equal(got, want) {
		t.Errorf("it goes on with %v, want %v", got, want)
	}
}

// D15: parts that are recorded are read, and the others are computed and written. Pull sends nothing: TensorFlow's threads must not
// use the session, and the run reports later.
func TestAStreamReadsThePartsThatAreRecorded(t *testing.T) {
	d, runtime := directory(t)
	sent := 0
	d.Send = func(messages ...*pecanv1.WorkerMessage) { sent += len(messages) }
	plan, whole, graphs := cached(t)
	parts := whole.Parts
	writing := source(t, d, plan, whole, nil)
	from := &computed{runtime: runtime, graphs: graphs}
	begin(t, writing, from)
	want := numbers(t, writing)
	segments := writtenBy(writing)
	if !slices.Equal(from.opened, parts) || len(segments) != len(parts) {
		t.Fatalf("computed %v of %v, wrote %d segments", from.opened, parts, len(segments))
	}
	// The second segment has other sources, and the last one is not there.
	changed := proto.Clone(segments[1]).(*pecanv1.CacheSegment)
	changed.Source = "other files"
	last := len(segments) - 1
	again := source(t, d, plan, whole, append([]*pecanv1.CacheSegment{segments[0], changed}, segments[2:last]...))
	if part, missing := again.FirstMissing(); !missing || part != parts[last] {
		t.Errorf("part %d is missing: %v", part, missing)
	}
	from = &computed{runtime: runtime, graphs: graphs}
	begin(t, again, from)
	if got := numbers(t, again); !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	if computed := []uint32{parts[1], parts[last]}; !slices.Equal(from.opened, computed) || !slices.Equal(from.written, computed) {
		t.Errorf("parts %v were computed, and graphs of %v written, want %v", from.opened, from.written, computed)
	}
	var written []uint32
	for _, segment := range writtenBy(again) {
		written = append(written, segment.Part)
	}
	if !slices.Equal(written, []uint32{parts[last]}) {
		t.Errorf("parts %v were written", written)
	}
	if invalid := d.invalid.Load(); invalid != 1 || sent != 0 {
		t.Errorf("%d segments are invalid, and Pull sent %d messages", invalid, sent)
	}
	if again.Report(); sent != 1 {
		t.Errorf("%d messages were sent about the invalid segment", sent)
	}
	// Parts that the decision does not keep are computed, and not written.
	some := source(t, d, plan, whole, segments[:1])
	some.Action.WrittenBelow = parts[last]
	begin(t, some, &computed{runtime: runtime, graphs: graphs})
	if got := numbers(t, some); !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	written = nil
	for _, segment := range writtenBy(some) {
		written = append(written, segment.Part)
	}
	if !slices.Equal(written, parts[1:last]) {
		t.Errorf("parts %v were written, want %v", written, parts[1:last])
	}
}

// The first element of a part fails in an iterator that parts share: the part is opened alone.
func TestAPartWhoseFirstElementFailsIsOpenedAlone(t *testing.T) {
	d, runtime := directory(t)
	plan, whole, graphs := cached(t)
	parts := whole.Parts
	plain := source(t, d, plan, whole, nil)
	begin(t, plain, &computed{runtime: runtime, graphs: graphs})
	want := numbers(t, plain)
	from := &computed{runtime: runtime, graphs: graphs, shared: func() (*tf.Iterator, func(), error) {
		serialised, err := os.ReadFile(filepath.Join("..", "..", "..", "native", "tf", "testdata", "missing.graph"))
		if err != nil {
			return nil, nil, err
		}
		return open(runtime, serialised)
	}}
	s := source(t, d, plan, whole, nil)
	begin(t, s, from)
	if got := numbers(t, s); !slices.Equal(got, want) || from.alone != len(parts) {
		t.Errorf("%v, want %v; %d parts were opened alone", got, want, from.alone)
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
	// Segments become durable after the source of a stopped run is closed.
	t.Cleanup(func() { d.Running.Wait() })
	return d, runtime
}

// cached is a dataset with a cached step, the graphs of its first stream, and those of its parts.
func cached(t *testing.T) (*pecanv1.Plan, *rewrite.StreamGraphs, func(part uint32) (*rewrite.StreamGraphs, error)) {
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
	if err != nil || plan.GetCache().GetParts() == 0 {
		t.Fatal(plan.GetReasons(), err)
	}
	at := rewrite.At{Epoch: 1, Mode: plan.GetMode(), Source: -1, Cached: plan.GetCache(), CacheSource: 1, Job: "job"}
	graphs, err := rewrite.Instantiate(parsed, plan, at)
	if err != nil {
		t.Fatal(err)
	}
	return plan, graphs, func(part uint32) (*rewrite.StreamGraphs, error) {
		at.Part = &part
		return rewrite.Instantiate(parsed, plan, at)
	}
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
		writer, err := d.dir.Create(t.Context(), cache.Name("c", "k", 0, 1, d.begun.Add(1), "w"), id, nil, 0)
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
		reader, err := d.dir.Open(segment, d.alloc)
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
			tensors, err := tensorsOf(&chunk, reader.Block(), &table)
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
