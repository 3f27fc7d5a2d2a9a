package worker

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/graph/rewrite"
	"github.com/pecan-ml/pecan/service/graph/split"
	"github.com/pecan-ml/pecan/service/worker/dataset"
)

// cachedStream gives a worker with a cache directory the graphs of service/graph/testdata. It returns the
// StartStream of one stream of a dataset.
func cachedStream(t *testing.T, w *Worker, name string) *pecanv1.StartStream {
	t.Helper()
	graphs := dataset.NewStore(func(_ context.Context, name string) ([]byte, error) {
		return os.ReadFile(filepath.Join("..", "graph", "testdata", name+".pb"))
	})
	useGraphs(w, byName{graphs})
	parsed, err := graphs.Get(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	o := startCommand(name)
	if o.Plan, err = split.MakePlan(parsed, o.Options, split.Env{}); err != nil || o.Plan.GetCache() == nil {
		t.Fatal(o.Plan.GetReasons(), err)
	}
	o.Cache = storing(o.Plan)
	return o
}

// storing is the action of a stream that reads these segments and writes all parts that have none.
func storing(plan *pecanv1.Plan, segments ...*pecanv1.CacheSegment) *pecanv1.CacheAction {
	return &pecanv1.CacheAction{Key: plan.GetCache().GetKey(), Step: plan.GetCache(), Segments: segments, WrittenBelow: split.AllParts(plan, plan.GetCache())}
}

func withCache(t *testing.T) (*Worker, string) {
	path := filepath.Join(t.TempDir(), "cache")
	w := startWorker(t, func(c *Config) { c.CacheDir, c.CacheOrphanAfter = path, DefaultCacheOrphanAfter })
	// No dispatcher has welcomed this worker.
	w.streams.Caches.Cluster = func() string { return "c-1" }
	// So no acknowledgement comes.
	w.streams.Caches.AckWait = 50 * time.Millisecond
	return w, path
}

// read runs a stream under its own lease and returns its elements as text.
func read(t *testing.T, w *Worker, o *pecanv1.StartStream, lease uint64) string {
	t.Helper()
	// A run that ends still reads its command.
	o = proto.CloneOf(o)
	o.Lease = lease
	w.streams.Start(o)
	r := dialTCP(t, w)
	r.open(1, opening(o))
	elements, failures, _ := r.stream(0)
	if len(failures) > 0 {
		t.Fatal(failures)
	}
	w.streams.Stop(&pecanv1.StopStream{Id: o.Id})
	return fmt.Sprint(elements)
}

// reported returns the segments that a worker would report to a new dispatcher.
func reported(w *Worker) (segments []*pecanv1.CacheSegment) {
	send := w.streams.Caches.Send
	defer func() { w.streams.Caches.Send = send }()
	w.streams.Caches.Send = func(messages ...*pecanv1.WorkerMessage) {
		for _, message := range messages {
			segments = append(segments, message.GetCacheSegmentWritten().GetSegment())
		}
	}
	w.streams.Caches.Resend()
	return segments
}

// written acknowledges the reported segments, as a dispatcher would, and returns them.
func written(t *testing.T, w *Worker) []*pecanv1.CacheSegment {
	t.Helper()
	segments := reported(w)
	if len(segments) == 0 {
		t.Fatal("no segment was reported")
	}
	for _, segment := range segments {
		w.streams.Caches.Acknowledge(&pecanv1.CacheSegmentAck{Name: segment.Name, Accepted: true})
	}
	return segments
}

func TestCachedElementsAreRead(t *testing.T) {
	for _, name := range []string{"cached", "cached_noise", "cached_shuffled"} {
		w, _ := withCache(t)
		o := cachedStream(t, w, name)
		o.Cache = nil
		want := read(t, w, o, 1)
		o.Cache = storing(o.Plan)
		if got := read(t, w, o, 2); got != want {
			t.Errorf("%s: written beside, the elements are %.200s, without %.200s", name, got, want)
		}
		o.Cache.Segments = written(t, w)
		if got := read(t, w, o, 3); got != want {
			t.Errorf("%s: read, the elements are %.200s, computed %.200s", name, got, want)
		}
		if metrics := w.streams.Caches.Metrics(); metrics.GetBytesRead() == 0 || metrics.GetSegmentsInvalid() != 0 {
			t.Errorf("%s: nothing was read", name)
		}
		// Totals only grow: the metrics of a stream that read a cache stay separate after its end.
		o.Lease = 3
		takeBack(t, w, o)
		w.streams.Totals.Resend()
		if metrics := w.streams.Totals.Unreported("job"); len(metrics.GetCached()) == 0 {
			t.Errorf("%s: after the stream ended, no metrics are those of a cache: %v", name, metrics)
		}
	}
}

// All streams with a cached step run in one iterator upstream of it and one downstream, in whatever they do with segments.
func TestStreamsWithACachedStepShareIterators(t *testing.T) {
	w, _ := withCache(t)
	o := cachedStream(t, w, "cached")
	if o.Plan.NumStreams < 3 {
		t.Fatalf("there are %d streams", o.Plan.NumStreams)
	}
	want, segments := map[uint32]string{}, map[uint32][]*pecanv1.CacheSegment{}
	lease := uint64(0)
	run := func(stream uint32, action *pecanv1.CacheAction) string {
		lease++
		o.Id.Stream, o.Cache = stream, action
		elements := read(t, w, o, lease)
		waitFor(t, "the run to return its iterators", func() bool { return w.streams.Load().Running == 0 })
		return elements
	}
	for stream := range uint32(3) {
		want[stream] = run(stream, nil)
	}
	before := w.streams.Load().PooledIterators
	for stream := range uint32(3) {
		if got := run(stream, storing(o.Plan)); got != want[stream] {
			t.Errorf("stream %d: written beside, the elements are %.200s, without %.200s", stream, got, want[stream])
		}
		segments[stream] = written(t, w)
	}
	for stream := range uint32(3) {
		if got := run(stream, storing(o.Plan, segments[stream]...)); got != want[stream] {
			t.Errorf("stream %d: read, the elements are %.200s, computed %.200s", stream, got, want[stream])
		}
	}
	if made := w.streams.Load().PooledIterators - before; before != 1 || made != 2 {
		t.Errorf("%d pooled iterators without a cache, and %d with one", before, made)
	}
}

// D11: the elements of an invalid segment are computed, the segment is counted, and its file is moved aside.
func TestADamagedSegmentIsComputedInstead(t *testing.T) {
	w, path := withCache(t)
	o := cachedStream(t, w, "cached")
	want := read(t, w, o, 1)
	segments := written(t, w)
	segment := segments[len(segments)/2]
	harm := map[string]func(data []byte) []byte{
		"damaged": func(d []byte) []byte { d[40] ^= 1; return d },
		"shorter": func(d []byte) []byte { return d[:len(d)-1] },
		"empty":   func([]byte) []byte { return nil },
		"longer":  func(d []byte) []byte { return append(d, 0) },
		"zeroed":  func(d []byte) []byte { clear(d[len(d)/4 : len(d)/2]); return d },
		"footer":  func(d []byte) []byte { d[len(d)-1] ^= 1; return d },
	}
	good, err := os.ReadFile(filepath.Join(path, segment.Name))
	if err != nil {
		t.Fatal(err)
	}
	lease, invalid := uint64(2), uint64(0)
	for what, hurt := range harm {
		if err := os.WriteFile(filepath.Join(path, segment.Name), hurt(bytes.Clone(good)), 0o600); err != nil {
			t.Fatal(err)
		}
		o.Cache.Segments = segments
		lease++
		invalid++
		if got := read(t, w, o, lease); got != want {
			t.Errorf("%s: %.200s, want %.200s", what, got, want)
		}
		if w.streams.Caches.Metrics().GetSegmentsInvalid() != invalid {
			t.Errorf("%s: the segment was not counted as invalid", what)
		}
		if _, err := os.Stat(filepath.Join(path, strings.TrimSuffix(segment.Name, ".seg")+".bad")); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	if err := os.RemoveAll(filepath.Join(path, segment.Name)); err != nil {
		t.Fatal(err)
	}
	if got := read(t, w, o, lease+1); got != want || w.streams.Caches.Metrics().GetSegmentsInvalid() != invalid+1 {
		t.Errorf("without its file: %.200s, want %.200s; %d were counted as invalid", got, want, w.streams.Caches.Metrics().GetSegmentsInvalid())
	}
}

// refilled is a planner of datasets with a table that is filled from a file. The file has an age when the table gets its name, and
// may change afterwards.
type refilled struct {
	dataset.Instantiator
	file    string
	age     time.Duration
	changes bool
}

func (r refilled) Instantiate(ctx context.Context, fingerprint string, plan *pecanv1.Plan, at rewrite.At) (*rewrite.StreamGraphs, error) {
	graphs, err := r.Instantiator.Instantiate(ctx, fingerprint, plan, at)
	if err != nil {
		return nil, err
	}
	changed := time.Now().Add(-r.age).Truncate(time.Second)
	if err := os.Chtimes(r.file, changed, changed); err != nil {
		return nil, err
	}
	graphs.Files = dataset.FileStates(ctx, []string{r.file})
	if !r.changes {
		return graphs, nil
	}
	// Each change makes the file longer, because the next part gives it the old time again.
	file, err := os.OpenFile(r.file, os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		return nil, err
	}
	_, err = file.WriteString(" more")
	return graphs, errors.Join(err, file.Close())
}

// The segment's digest would name the new file although its elements may come from the old table.
func TestElementsFromAnOldTableAreNotCached(t *testing.T) {
	for _, c := range []struct {
		age             time.Duration
		changes, cached bool
	}{
		{age: time.Hour, cached: true},
		{age: time.Hour, changes: true},
		// The version of a file that has just changed is not known. It could change once more.
		{},
		{changes: true},
	} {
		w, _ := withCache(t)
		o := cachedStream(t, w, "cached")
		file := filepath.Join(t.TempDir(), "words")
		if err := os.WriteFile(file, []byte("words"), 0o600); err != nil {
			t.Fatal(err)
		}
		useGraphs(w, refilled{w.streams.Graphs, file, c.age, c.changes})
		read(t, w, o, 1)
		reported := len(reported(w))
		if (reported > 0) != c.cached {
			t.Errorf("the file is %v old, and changes: %v; %d segments were reported", c.age, c.changes, reported)
		}
	}
}
