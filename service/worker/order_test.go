package worker

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	graphorder "github.com/pecan-ml/pecan/service/graph/order"
	"github.com/pecan-ml/pecan/service/graph/split"

	"google.golang.org/protobuf/proto"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/worker/dataset"
)

// orderable gives a worker the graphs of testdata/orders.py. It returns the StartStream of one of them and the
// names of its steps.
func orderable(t *testing.T, w *Worker, name string, options *pecanv1.JobOptions) (o *pecanv1.StartStream, steps []string) {
	t.Helper()
	graphs := dataset.NewStore(func(_ context.Context, name string) ([]byte, error) {
		return os.ReadFile(filepath.Join("testdata", "order_"+name+".graph"))
	})
	useGraphs(w, byName{graphs})
	parsed, err := graphs.Get(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	for _, step := range graphorder.TraitsOf(parsed) {
		steps = append(steps, step.Node)
	}
	o = startCommand(name)
	o.Options = options
	if o.Plan, err = split.MakePlan(parsed, options, split.Env{}); err != nil {
		t.Fatal(err)
	}
	return o, steps
}

// ordered returns the names at some positions.
func ordered(steps []string, places ...int) []string {
	var out []string
	for _, place := range places {
		out = append(out, steps[place])
	}
	return out
}

// own is a copy for the worker: a stopped run still reads its StartStream, and tests change theirs.
func own(o *pecanv1.StartStream) *pecanv1.StartStream {
	return proto.Clone(o).(*pecanv1.StartStream)
}

// from reads a stream from an index on, as text.
func from(t *testing.T, w *Worker, o *pecanv1.StartStream, index uint64) string {
	t.Helper()
	o.Lease++
	o.CleanBelow = index
	w.streams.Start(own(o))
	r := dialTCP(t, w)
	request := opening(o)
	request.StartIndex = index
	r.open(1, request)
	elements, failures, _ := r.stream(index)
	if len(failures) > 0 {
		t.Fatal(failures)
	}
	w.streams.Stop(&pecanv1.StopStream{Id: o.Id})
	return fmt.Sprint(elements)
}

// sameElements lists positions of steps, source first. Each list is an order that changes no element.
var sameElements = map[string][]int{
	"streams": {0, 2, 1, 3, 4, 6, 7, 5},
	"batches": {0, 2, 3, 1, 4, 5, 7, 6},
}

func TestAReorderedPlanProducesTheElementsOfTheRegisteredOne(t *testing.T) {
	for name, places := range sameElements {
		t.Run(name, func(t *testing.T) {
			w, _ := withCache(t)
			options := &pecanv1.JobOptions{Mode: pecanv1.Mode_MODE_DETERMINISTIC, Seed: 7}
			o, steps := orderable(t, w, name, options)
			if o.Plan.GetNumStreams() < 2 || len(o.Plan.GetKeyed()) == 0 {
				t.Fatalf("%d streams, keyed are %v", o.Plan.GetNumStreams(), o.Plan.GetKeyed())
			}
			last := uint32(o.Plan.GetNumStreams()) - 1
			for _, stream := range []uint32{0, last / 2, last} {
				o.Id = &pecanv1.StreamId{JobId: "job", Epoch: 1, Stream: stream}
				for _, index := range []uint64{0, 2} {
					o.Cache = nil
					if stream == last && index == 0 && o.Plan.GetCache() != nil {
						o.Cache = storing(o.Plan)
					}
					o.Plan.Order = nil
					want := from(t, w, o, index)
					o.Plan.Order = ordered(steps, places...)
					if got := from(t, w, o, index); got != want {
						t.Errorf("stream %d from %d on: %.300s, registered %.300s", stream, index, got, want)
					}
				}
			}
		})
	}
}

// The metrics of runs in another order are separate, and so are their failures.
func TestMetricsOfAnotherOrderAreSeparate(t *testing.T) {
	w := startWorker(t, nil)
	o, steps := orderable(t, w, "failing", &pecanv1.JobOptions{Mode: pecanv1.Mode_MODE_DETERMINISTIC, Seed: 7})
	read := func() *pecanv1.JobMetrics {
		o.Lease++
		w.streams.Start(own(o))
		r := dialTCP(t, w)
		r.open(1, opening(o))
		for have := uint64(0); have < 40; {
			g := mustNext(t, r)
			have = g.header.Index + uint64(max(g.header.Count, 1))
			r.credit(1, have, 1<<40)
		}
		r.nc.Close()
		takeBack(t, w, o)
		w.streams.Totals.Resend()
		return w.streams.Totals.Unreported("job")
	}
	first := read()
	if first.Failed == 0 || first.OrderedFailed > 0 || len(first.Nodes) == 0 || len(first.Ordered) > 0 {
		t.Fatalf("in the registered order %v", first)
	}
	o.Plan.Order = ordered(steps, 0, 3, 2, 1)
	second := read()
	if second.OrderedFailed == 0 || second.OrderedFailed != second.Failed-first.Failed {
		t.Errorf("failed %d, then %d, in the order %d", first.Failed, second.Failed, second.OrderedFailed)
	}
	made := map[string]uint64{}
	for _, node := range second.Nodes {
		made[node.Node] = node.Elements
	}
	for i, node := range second.Ordered {
		if node.Elements == 0 || node.Elements != made[node.Node]-first.Nodes[i].Elements {
			t.Errorf("%v of %d, %v before", node, made[node.Node], first.Nodes[i])
		}
	}
	o.Plan.Order = nil
	third := read()
	if third.OrderedFailed != second.OrderedFailed || third.Failed == second.Failed || !slices.EqualFunc(third.Ordered, second.Ordered, func(a, b *pecanv1.NodeMetrics) bool { return proto.Equal(a, b) }) {
		t.Errorf("in the registered order again %v", third)
	}
}

// A trainer may end its job at an element that fails only in an order. The dispatcher has learned of it by then, although no heartbeat
// was due.
func TestTheFirstFailedElementIsReportedAtOnce(t *testing.T) {
	c := newCommander()
	c.graphs, c.ttl, c.heartbeat = "testdata", 200_000, 60_000
	w := withSession(t, c.listen(t, "127.0.0.1:0"))
	c.hello(t)
	o, steps := orderable(t, w, "failing", &pecanv1.JobOptions{Mode: pecanv1.Mode_MODE_DETERMINISTIC, Seed: 7})
	o.Plan.Order = ordered(steps, 0, 3, 2, 1)
	c.start(own(o))
	await(t, c, "the failed element", func(m *pecanv1.WorkerMessage) (struct{}, bool) {
		if m.GetHeartbeat() != nil || m.GetEnded() != nil {
			t.Fatal("the heartbeat or the end came first")
		}
		return struct{}{}, m.GetMetrics().GetOrderedFailed() > 0
	})
}

func TestAStreamRunsItsStepsInThePlannedOrder(t *testing.T) {
	w := startWorker(t, nil)
	o, steps := orderable(t, w, "mean_crop", &pecanv1.JobOptions{Mode: pecanv1.Mode_MODE_DETERMINISTIC, Seed: 7})
	first := func() string {
		o.Lease++
		w.streams.Start(own(o))
		r := dialTCP(t, w)
		r.open(1, opening(o))
		g, err := r.next()
		if err != nil || len(g.elements) == 0 {
			t.Fatal(g.failure, err)
		}
		w.streams.Stop(&pecanv1.StopStream{Id: o.Id})
		return fmt.Sprint(g.elements[0])
	}
	registered := first()
	o.Plan.Order = ordered(steps, 0, 2, 1)
	if first() == registered {
		t.Error("the steps were not put in another order")
	}
}
