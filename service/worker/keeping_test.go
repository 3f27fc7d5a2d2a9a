package worker

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/pecan-ml/pecan/native/tf"
	"github.com/pecan-ml/pecan/proto/frame"
	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/cache"
	"github.com/pecan-ml/pecan/service/graph/rewrite"
	"github.com/pecan-ml/pecan/service/graph/split"
)

// kept gives a worker with a directory for caches the graphs of service/graph/testdata, and the order of one stream of a dataset.
func kept(t *testing.T, w *Worker, name string) *pecanv1.StartStream {
	t.Helper()
	graphs := newGraphs(func(_ context.Context, name string) ([]byte, error) {
		return os.ReadFile(filepath.Join("..", "graph", "testdata", name+".pb"))
	})
	w.graphs = byName{graphs}
	parsed, err := graphs.get(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	o := order(name)
	if o.Plan, err = split.Analyze(parsed, o.Options, split.Env{}); err != nil || o.Plan.GetCache() == nil {
		t.Fatal(o.Plan.GetReasons(), err)
	}
	o.Cache = &pecanv1.CacheAction{Key: o.Plan.GetCache().GetKey()}
	return o
}

func withCache(t *testing.T) (*Worker, string) {
	path := filepath.Join(t.TempDir(), "cache")
	return serve(t, func(c *Config) { c.CacheDir, c.CacheOrphanAfter = path, DefaultCacheOrphanAfter }), path
}

// read runs a stream under a lease of its own and gives its elements in words.
func read(t *testing.T, w *Worker, o *pecanv1.StartStream, lease uint64) string {
	t.Helper()
	o.Lease = lease
	w.start(o)
	r := dialTCP(t, w)
	r.open(1, opening(o))
	elements, failures, _ := r.stream(0)
	if len(failures) > 0 {
		t.Fatal(failures)
	}
	w.stop(&pecanv1.StopStream{Id: o.Id})
	return fmt.Sprint(elements)
}

// written answers like a dispatcher that names every segment, and gives the last one.
func written(t *testing.T, w *Worker) *pecanv1.CacheSegment {
	t.Helper()
	w.caches.mu.Lock()
	var segment *pecanv1.CacheSegment
	for _, own := range w.caches.own {
		segment = own.segment
	}
	w.caches.mu.Unlock()
	if segment == nil {
		t.Fatal("no segment was told of")
	}
	w.caches.named(&pecanv1.CacheSegmentAck{Name: segment.Name, Accepted: true})
	return segment
}

func TestWhatWasWrittenIsRead(t *testing.T) {
	for _, name := range []string{"kept", "kept_drawn", "kept_otherwise"} {
		w, _ := withCache(t)
		o := kept(t, w, name)
		o.Cache = nil
		want := read(t, w, o, 1)
		o.Cache = &pecanv1.CacheAction{Key: o.Plan.GetCache().GetKey()}
		if got := read(t, w, o, 2); got != want {
			t.Errorf("%s: written beside, the elements are %.200s, without %.200s", name, got, want)
		}
		o.Cache.Segment = written(t, w)
		if got := read(t, w, o, 3); got != want {
			t.Errorf("%s: read, the elements are %.200s, computed %.200s", name, got, want)
		}
		if w.caches.read.Load() == 0 || w.caches.spoilt.Load() != 0 {
			t.Errorf("%s: nothing was read", name)
		}
	}
}

// D11: what a segment of no use would have given is computed, it is counted, and the file is taken out of the way.
func TestADamagedSegmentIsComputedInstead(t *testing.T) {
	w, path := withCache(t)
	o := kept(t, w, "kept")
	want := read(t, w, o, 1)
	segment := written(t, w)
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
	lease, spoilt := uint64(2), uint64(0)
	for what, hurt := range harm {
		if err := os.WriteFile(filepath.Join(path, segment.Name), hurt(bytes.Clone(good)), 0o600); err != nil {
			t.Fatal(err)
		}
		o.Cache.Segment = segment
		lease++
		spoilt++
		if got := read(t, w, o, lease); got != want {
			t.Errorf("%s: %.200s, want %.200s", what, got, want)
		}
		if w.caches.spoilt.Load() != spoilt {
			t.Errorf("%s: nobody noticed", what)
		}
		if _, err := os.Stat(filepath.Join(path, strings.TrimSuffix(segment.Name, ".seg")+".bad")); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	if err := os.RemoveAll(filepath.Join(path, segment.Name)); err != nil {
		t.Fatal(err)
	}
	if got := read(t, w, o, lease+1); got != want || w.caches.spoilt.Load() != spoilt+1 {
		t.Errorf("without its file: %.200s, want %.200s; %d were noticed", got, want, w.caches.spoilt.Load())
	}
}

// A segment breaks off, and the dataset cannot be computed at first: it goes on behind what was given, when it can.
func TestWhatCannotBeComputedInsteadIsTriedAgainAtItsPlace(t *testing.T) {
	w, _ := withCache(t)
	o := kept(t, w, "kept")
	read(t, w, o, 1)
	o.Cache.Segment, o.Lease = written(t, w), 2
	w.start(o)
	r := dialTCP(t, w)
	r.open(1, opening(o))
	ran := w.held()[0].run
	r.stream(0)
	w.stop(&pecanv1.StopStream{Id: o.GetId()})
	<-ran.done
	was := ran.keeping
	again := func(given uint64, graphs *rewrite.StreamGraphs) *keeping {
		k := &keeping{
			run: newRun(was.run.stream, beginning{}), caches: w.caches, order: o.Cache, source: was.source, given: given, graphs: graphs,
		}
		t.Cleanup(k.close)
		return k
	}
	const given = 10
	want := pulled(t, again(0, was.graphs))[given:]
	k := again(given, &rewrite.StreamGraphs{BelowCache: []byte("no graph")})
	if err := k.beginReading(o.Cache.Segment); err != nil {
		t.Fatal(err)
	}
	if err := k.reader.Close(); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if got, err := k.Pull(); err == nil || errors.Is(err, io.EOF) {
			t.Fatalf("%v, %v", got, err)
		}
	}
	k.graphs = was.graphs
	if got := pulled(t, k); len(want) == 0 || !slices.Equal(got, want) {
		t.Errorf("it goes on with %v, want %v", got, want)
	}
}

// pulled gives all numbers that come.
func pulled(t *testing.T, k *keeping) (numbers []uint64) {
	t.Helper()
	for {
		tensors, err := k.Pull()
		if errors.Is(err, io.EOF) {
			return numbers
		}
		if err != nil {
			t.Fatal(err)
		}
		for data := tensors[0].Data(); len(data) > 0; data = data[8:] {
			numbers = append(numbers, binary.LittleEndian.Uint64(data))
		}
		tf.ReleaseAll(tensors)
	}
}

// TestEveryDtypeSurvivesASegment takes elements of all dtypes and shapes through a segment and compares the bytes of their tensors.
func TestEveryDtypeSurvivesASegment(t *testing.T) {
	w, _ := withCache(t)
	for _, name := range []string{"dtypes", "strings", "mixed"} {
		serialised, err := os.ReadFile(filepath.Join("..", "..", "native", "tf", "testdata", name+".graph"))
		if err != nil {
			t.Fatal(err)
		}
		types, err := outputTypes(serialised)
		if err != nil {
			t.Fatal(err)
		}
		it, err := w.contexts.plain.NewIterator(serialised, types)
		if err != nil {
			t.Fatal(err)
		}
		from := &lower{it: it}
		id := cache.ID{Key: "k"}
		writer, err := w.caches.dir.Create(cache.Name("k", 0, 1, w.caches.runs.Add(1), "w"), id, true)
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
		reader, err := w.caches.dir.Open(segment)
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
			tensors, err := raise(&chunk, &table)
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

func TestSourcesThatChangedAreSeen(t *testing.T) {
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

// refilled is a planner of datasets with a table that is filled from a file, which changes once the table has its name.
type refilled struct {
	planner
	file    string
	changes bool
}

func (r refilled) instantiate(ctx context.Context, fingerprint string, plan *pecanv1.Plan, at rewrite.At) (*rewrite.StreamGraphs, error) {
	graphs, err := r.planner.instantiate(ctx, fingerprint, plan, at)
	if err != nil {
		return nil, err
	}
	graphs.Files = fileStates([]string{r.file})
	if r.changes {
		err = os.WriteFile(r.file, []byte("other words"), 0o600)
	}
	return graphs, err
}

// The digest of a segment would say that it was made with the new file, and its elements may have come from a table of the old one.
func TestWhatMayComeFromAnOldTableIsNotKept(t *testing.T) {
	for _, changes := range []bool{false, true} {
		w, _ := withCache(t)
		o := kept(t, w, "kept")
		file := filepath.Join(t.TempDir(), "words")
		if err := os.WriteFile(file, []byte("words"), 0o600); err != nil {
			t.Fatal(err)
		}
		w.graphs = refilled{w.graphs, file, changes}
		read(t, w, o, 1)
		w.caches.mu.Lock()
		told := len(w.caches.own)
		w.caches.mu.Unlock()
		if (told == 0) != changes {
			t.Errorf("the file changes: %v; %d segments were told of", changes, told)
		}
	}
}
