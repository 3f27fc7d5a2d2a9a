package worker

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/pecan-ml/pecan/service/graph/rewrite"
	"github.com/pecan-ml/pecan/service/graph/split"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/worker/dataset"
)

// planned gives a worker the graphs of native/tf/testdata as registered datasets. It returns the StartStream of
// a whole dataset with its plan.
func planned(t *testing.T, w *Worker, name string) *pecanv1.StartStream {
	t.Helper()
	fetch := func(_ context.Context, name string) ([]byte, error) {
		return os.ReadFile(filepath.Join("..", "..", "native", "tf", "testdata", name+".graph"))
	}
	graphs := dataset.NewStore(fetch)
	useGraphs(w, byName{graphs})
	parsed, err := graphs.Get(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	o := startCommand(name)
	// With one stream, element i of the stream is element i of the dataset.
	o.Options.Mode = pecanv1.Mode_MODE_OFF
	if o.Plan, err = split.MakePlan(parsed, o.Options, split.Env{}); err != nil {
		t.Fatal(err)
	}
	return o
}

// byName finds datasets by the names of their files; a plan has the fingerprint.
type byName struct{ *dataset.Store }

func (b byName) Instantiate(ctx context.Context, name string, plan *pecanv1.Plan, at rewrite.At) (*rewrite.StreamGraphs, error) {
	return b.Store.Instantiate(ctx, name, plan, at)
}

// recoveryOf returns what all runs of the job recomputed.
func recoveryOf(w *Worker) *pecanv1.Recovery {
	w.streams.Totals.Resend()
	return w.streams.Totals.Unreported("job").GetRecovery()
}

func TestAStreamBeginsAtItsIndex(t *testing.T) {
	w := startWorker(t, nil)
	o := planned(t, w, "batches")
	if o.Plan.Resume.GetStrategy() != pecanv1.Resume_SEEK {
		t.Fatalf("the plan says %v", o.Plan.Resume)
	}
	o.CleanBelow = 7
	w.streams.Start(o)
	for i, start := range []uint64{7, 9, 10, 2} {
		r := dialTCP(t, w)
		request := opening(o)
		request.StartIndex = start
		r.open(1, request)
		elements, _, end := r.stream(start)
		if end.Index != 11 || uint64(len(elements)) != 11-start {
			t.Fatalf("from %d: %d elements, end %d", start, len(elements), end.Index)
		}
		for at, element := range elements {
			if got, want := fmt.Sprint(element[0].bytes[0]), fmt.Sprint(10*(start+uint64(at))); got != want {
				t.Fatalf("from %d: element %d begins with %s, want %s", start, start+uint64(at), got, want)
			}
		}
		if recovery := recoveryOf(w); recovery.Recomputed != 0 && i < 3 || recovery.Started < 1 {
			t.Fatalf("from %d: %v", start, recovery)
		}
	}
}

// Streams that begin at an index share an iterator too. The graph at an index has further steps, so it is another one than
// that of streams that begin at 0.
func TestStreamsThatBeginAtAnIndexShareAnIterator(t *testing.T) {
	w := startWorker(t, nil)
	o := inStreams(t, w, filepath.Join("testdata", "%s.graph"), "opened_light", 3)
	lease := uint64(0)
	run := func(stream uint32, from uint64) []string {
		lease++
		o := proto.Clone(o).(*pecanv1.StartStream)
		o.Id.Stream, o.Lease, o.CleanBelow = stream, lease, from
		w.streams.Start(o)
		r := dialTCP(t, w)
		defer r.nc.Close()
		request := opening(o)
		request.StartIndex, request.CleanBelow = from, from
		r.open(1, request)
		elements, _, _ := r.stream(from)
		waitFor(t, "the iterator is free", func() bool { return w.streams.Load().Running == 0 })
		w.streams.Stop(&pecanv1.StopStream{Id: o.Id})
		var texts []string
		for _, element := range elements {
			texts = append(texts, fmt.Sprint(element))
		}
		return texts
	}
	for stream := range uint32(3) {
		whole := run(stream, 0)
		for _, from := range []uint64{1, 2} {
			if got := run(stream, from); !slices.Equal(got, whole[from:]) {
				t.Errorf("stream %d from %d has %v, from 0 %v", stream, from, got, whole)
			}
		}
	}
	if made := w.streams.Load().PooledIterators; made != 2 {
		t.Errorf("%d pooled iterators were made: want one for streams from 0, and one for streams from an index", made)
	}
}

func TestAStreamSeeksToAReaderThatIsFarAhead(t *testing.T) {
	w := startWorker(t, nil)
	o := planned(t, w, "spinning")
	w.streams.Start(o)
	first := dialTCP(t, w)
	first.open(1, opening(o))
	if g, err := first.next(); err != nil || g.header.Index != 0 {
		t.Fatal(g.header, err)
	}
	first.nc.Close()
	r := dialTCP(t, w)
	request := opening(o)
	request.StartIndex, request.CleanBelow = 1_000_000, 1_000_000
	r.open(1, request)
	g, err := r.next()
	if err != nil || g.header.Index != 1_000_000 || g.elements[0][0].int64(t) != 1_200_000 {
		t.Fatalf("%v %v", g.header, err)
	}
	if recovery := recoveryOf(w); recovery.Recomputed > 100 || recovery.Started != 1 {
		t.Fatal(recovery)
	}
}

// A batch with a failed element is lost as a whole. The next batch begins after that element, here the first of
// its batch, so later elements have other indices than arithmetic says.
func TestElementsAfterAFailedOneKeepTheirIndices(t *testing.T) {
	w := startWorker(t, nil)
	o := planned(t, w, "failing_batches")
	w.streams.Start(o)
	whole := dialTCP(t, w)
	whole.open(1, opening(o))
	want, failures, end := whole.stream(0)
	if len(failures) != 1 || failures[1] == nil {
		t.Fatalf("%v failed", failures)
	}
	whole.credit(1, end.Index, 1<<40)
	whole.handled()
	for until := time.Now().Add(deadline); w.streams.Loads()[0].Acked < end.Index && time.Now().Before(until); {
		time.Sleep(time.Millisecond)
	}
	if load := w.streams.Loads()[0]; load.Acked != end.Index || load.CleanBelow != 1 {
		t.Fatalf("all %d elements have arrived, the second one failed: %v", end.Index, load)
	}
	w.streams.Stop(&pecanv1.StopStream{Id: o.Id})

	again := planned(t, w, "failing_batches")
	again.Lease, again.AckedBelow, again.CleanBelow = 8, 10, 1
	w.streams.Start(again)
	r := dialTCP(t, w)
	request := opening(again)
	request.StartIndex, request.CleanBelow = 10, 1
	r.open(1, request)
	got, _, _ := r.stream(10)
	if fmt.Sprint(got) != fmt.Sprint(want[10:]) {
		t.Fatalf("got %v\nwant %v", got, want[10:])
	}
}
