package worker

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/graph"
	graphorder "github.com/pecan-ml/pecan/service/graph/order"
	"github.com/pecan-ml/pecan/service/graph/split"
)

// orderable gives a worker the graphs of testdata/orders.py, and one of them with the plan of a job, and the names of its steps.
func orderable(t *testing.T, w *Worker, name string, options *pecanv1.JobOptions) (o *pecanv1.StartStream, steps []string) {
	t.Helper()
	graphs := newGraphs(func(_ context.Context, name string) ([]byte, error) {
		return os.ReadFile(filepath.Join("testdata", "order_"+name+".graph"))
	})
	w.graphs = byName{graphs}
	parsed, err := graphs.get(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	for _, step := range graphorder.TraitsOf(parsed) {
		steps = append(steps, step.Node)
	}
	o = order(name)
	o.Options = options
	if o.Plan, err = split.Analyze(parsed, options, split.Env{}); err != nil {
		t.Fatal(err)
	}
	return o, steps
}

// ordered gives the names at some places.
func ordered(steps []string, places ...int) []string {
	var out []string
	for _, place := range places {
		out = append(out, steps[place])
	}
	return out
}

// own is a copy that the worker may keep: a run that was stopped still looks at its order, and tests change theirs.
func own(o *pecanv1.StartStream) *pecanv1.StartStream {
	return proto.Clone(o).(*pecanv1.StartStream)
}

// from reads a stream from an index on, in words.
func from(t *testing.T, w *Worker, o *pecanv1.StartStream, index uint64) string {
	t.Helper()
	o.Lease++
	o.CleanBelow = index
	w.start(own(o))
	r := dialTCP(t, w)
	request := opening(o)
	request.StartIndex = index
	r.open(1, request)
	elements, failures, _ := r.stream(index)
	if len(failures) > 0 {
		t.Fatal(failures)
	}
	w.stop(&pecanv1.StopStream{Id: o.Id})
	return fmt.Sprint(elements)
}

// The numbers of steps, source first, of the graphs below: each an order that changes no element.
var sameElements = map[string][]int{
	"streams": {0, 2, 1, 3, 4, 6, 7, 5},
	"batches": {0, 2, 3, 1, 4, 5, 7, 6},
}

func TestAnOrderedPlanGivesWhatTheRegisteredOneGives(t *testing.T) {
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
					if key := o.Plan.GetCache().GetKey(); stream == last && index == 0 && key != "" {
						o.Cache = &pecanv1.CacheAction{Key: key}
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

// What streams do in another order is told apart, and so is what fails there.
func TestFiguresOfAnotherOrderAreToldApart(t *testing.T) {
	w := serve(t, nil)
	o, steps := orderable(t, w, "failing", &pecanv1.JobOptions{Mode: pecanv1.Mode_MODE_DETERMINISTIC, Seed: 7})
	read := func() *pecanv1.JobMetrics {
		o.Lease++
		w.start(own(o))
		r := dialTCP(t, w)
		r.open(1, opening(o))
		for have := uint64(0); have < 40; {
			g := mustNext(t, r)
			have = g.header.Index + uint64(max(g.header.Count, 1))
			r.credit(1, have, 1<<40)
		}
		r.nc.Close()
		takeBack(t, w, o)
		w.ledger.untold()
		return w.ledger.news("job")
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

func TestAnOrderIsObeyed(t *testing.T) {
	w := serve(t, nil)
	o, steps := orderable(t, w, "mean_crop", &pecanv1.JobOptions{Mode: pecanv1.Mode_MODE_DETERMINISTIC, Seed: 7})
	first := func() string {
		o.Lease++
		w.start(own(o))
		r := dialTCP(t, w)
		r.open(1, opening(o))
		g, err := r.next()
		if err != nil || len(g.elements) == 0 {
			t.Fatal(g.failure, err)
		}
		w.stop(&pecanv1.StopStream{Id: o.Id})
		return fmt.Sprint(g.elements[0])
	}
	registered := first()
	o.Plan.Order = ordered(steps, 0, 2, 1)
	if first() == registered {
		t.Error("the steps were not put in another order")
	}
}

func TestOrdersAreKeptAndOnesThatCannotBeAreRefused(t *testing.T) {
	w := serve(t, nil)
	o, steps := orderable(t, w, "streams", &pecanv1.JobOptions{})
	known, err := w.graphs.(byName).find(t.Context(), o.GetFingerprint())
	if err != nil {
		t.Fatal(err)
	}
	orders := [][]string{steps, ordered(steps, 0, 2, 1, 3, 4, 5, 6, 7), ordered(steps, 0, 1, 2, 3, 4, 6, 5, 7)}
	var graphs []*graph.Graph
	for _, order := range orders {
		for range 2 {
			g, err := known.inOrder(order)
			if err != nil {
				t.Fatal(err)
			}
			graphs = append(graphs, g)
		}
	}
	for i := range orders {
		if graphs[2*i] != graphs[2*i+1] || graphs[2*i].Fingerprint() != known.parsed.Fingerprint() {
			t.Errorf("order %d is not kept, or of another dataset", i)
		}
	}
	if len(known.ordered) != keepOrders || !slices.Equal(known.ordered[0].order, orders[2]) {
		t.Errorf("%d orders are kept", len(known.ordered))
	}
	_, err = known.inOrder(ordered(steps, 0, 4, 2, 3, 1, 5, 6, 7))
	if err == nil || !strings.Contains(err.Error(), "only maps and filters move") {
		t.Errorf("past what is kept: %v", err)
	}
}

// A state is that of one graph's iterator: an order of the same steps is another graph.
func TestACheckpointOfAnotherOrderIsNotRestored(t *testing.T) {
	of := func(order ...string) *pecanv1.Checkpoint {
		return &pecanv1.Checkpoint{Fingerprint: "f", PlanHash: planAndOrder(&pecanv1.Plan{Hash: "h", Order: order})}
	}
	dir := t.TempDir()
	checkpoints, err := openCheckpoints(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer checkpoints.root.Close()
	manifests := []*pecanv1.Checkpoint{of(), of("a", "b"), of("b", "a"), of("a b"), of("a\" \"b")}
	for i, written := range manifests {
		if err := checkpoints.write("place", written, []byte("state")); err != nil {
			t.Fatal(err)
		}
		for j, wanted := range manifests {
			if _, _, err := checkpoints.read("place/0-0.checkpoint", wanted); (err == nil) != (i == j) {
				t.Errorf("that of order %d is read for order %d: %v", i, j, err)
			}
		}
	}
	if of().GetPlanHash() != "h" {
		t.Error("checkpoints of the registered order are not found any more")
	}
}
