package dispatcher_test

import (
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/proto/reason"
	"github.com/pecan-ml/pecan/service/dispatcher"
	"github.com/pecan-ml/pecan/service/dispatcher/ordering"
	"github.com/pecan-ml/pecan/service/store"
)

// orderedJob opens an epoch of a job over images whose last step crops most of each image.
func (s *service) orderedJob(options *pecanv1.JobOptions) (job *pecanv1.CreateJobResponse) {
	s.t.Helper()
	dataset, err := s.registerGraph(graphOf(s.t, "crop_last"), specOf(dtFloat, 8, 8, 3))
	if err != nil {
		s.t.Fatal(err)
	}
	job = s.job("c1", "pictures", dataset.DatasetId, options)
	s.open("c1", job.JobId, 0)
	return job
}

const dtFloat = 1

func (s *service) explain(job string) *pecanv1.ExplainResponse {
	s.t.Helper()
	response, err := s.client.Explain(s.ctx(), &pecanv1.ExplainRequest{Job: job})
	if err != nil {
		s.t.Fatal(err)
	}
	return response
}

// until lets time pass, with live worker and trainer, until a job's order is as wanted.
func (w *worker) until(what string, wanted func(*pecanv1.OrderStatus) bool) {
	s := w.s
	s.t.Helper()
	for end := time.Now().Add(wait); ; time.Sleep(time.Millisecond) {
		status, err := s.client.Status(s.ctx(), &pecanv1.StatusRequest{})
		if err != nil || time.Now().After(end) {
			s.t.Fatalf("the order is not %s: %v %v", what, status, err)
		}
		if wanted(status.Jobs[0].Order) {
			return
		}
		if status.Workers[0].LastHeartbeatS > 0 {
			// The heartbeat is under way.
			continue
		}
		if _, err := s.client.ClientHeartbeat(s.ctx(), &pecanv1.ClientHeartbeatRequest{ClientId: "c1", JobIds: []string{status.Jobs[0].JobId}}); err != nil {
			s.t.Fatal(err)
		}
		s.clock.Advance(200 * time.Millisecond)
		w.heartbeat()
	}
}

// explained waits until a job's order is in a state.
func (w *worker) explained(job, state string) *pecanv1.ExplainResponse {
	w.s.t.Helper()
	w.until(state, func(o *pecanv1.OrderStatus) bool { return o.State == state })
	return w.s.explain(job)
}

// measured reports the costs of the steps: 0.1 s per element in the second one.
func (w *worker) measured(job string, steps []*pecanv1.ExplainedStep) {
	w.s.t.Helper()
	sizes := []uint64{8, 64 * 64 * 3 * 4, 64 * 64 * 3 * 4, 8 * 8 * 3 * 4}
	metrics := &pecanv1.JobMetrics{JobId: job, Generation: 1, Sequence: 1}
	for i, step := range steps {
		node := &pecanv1.NodeMetrics{Node: step.Node, Op: step.Op, Elements: 3000, SelfCpuS: 0.06, BytesIn: 3000 * sizes[i], BytesOut: 3000 * sizes[i+1]}
		if i == 1 {
			node.SelfCpuS = 300
		}
		metrics.Nodes = append(metrics.Nodes, node)
	}
	w.send(&pecanv1.WorkerMessage{Kind: &pecanv1.WorkerMessage_Metrics{Metrics: metrics}})
}

// figured waits until the dispatcher has the metrics of a job's steps.
func (w *worker) figured(job string) {
	s := w.s
	s.t.Helper()
	for end := time.Now().Add(wait); s.explain(job).Steps[0].Figures.GetElements() == 0; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			s.t.Fatal("the dispatcher has no metrics")
		}
	}
}

// inProduction reports later costs, in 1,000 more elements in either order: less in the second one.
func (w *worker) inProduction(job string, steps []*pecanv1.ExplainedStep) {
	w.s.t.Helper()
	metrics := &pecanv1.JobMetrics{JobId: job, Generation: 1, Sequence: 2}
	for i, step := range steps {
		metrics.Nodes = append(metrics.Nodes, &pecanv1.NodeMetrics{Node: step.Node, Op: step.Op, Elements: 5000, SelfCpuS: []float64{0.1, 404, 0.1}[i]})
		metrics.Ordered = append(metrics.Ordered, &pecanv1.NodeMetrics{Node: step.Node, Op: step.Op, Elements: 1000, SelfCpuS: []float64{0.02, 4, 0.02}[i]})
	}
	w.send(&pecanv1.WorkerMessage{Kind: &pecanv1.WorkerMessage_Metrics{Metrics: metrics}})
}

// tries waits for the command to try an order, and sends heartbeats meanwhile.
func (w *worker) tries() *pecanv1.TryOrder {
	w.s.t.Helper()
	for {
		if try := w.next().GetTryOrder(); try != nil {
			return try
		}
	}
}

// A rollout over a real graph, with a worker controlled by the test.
func TestAnOrderIsPlannedTriedAndAdopted(t *testing.T) {
	s := startService(t, serviceOptions{graphs: dispatcher.NewGraphs(dispatcher.DefaultConfig())})
	w := s.worker(workerHello("w", 64))
	job := s.orderedJob(&pecanv1.JobOptions{Order: pecanv1.Order_ORDER_AUTO})
	first := w.start()
	if first.Plan.Order != nil {
		t.Fatalf("the first epoch runs in the order %v", first.Plan.Order)
	}
	explained := s.explain("pictures")
	if explained.State != "measuring" || explained.JobId != job.JobId || len(explained.Steps) != 3 {
		t.Fatalf("at first %v", explained)
	}
	names := []string{explained.Steps[0].Node, explained.Steps[1].Node, explained.Steps[2].Node}
	ordered := []string{names[0], names[2], names[1]}
	w.measured(job.JobId, explained.Steps)
	w.explained("pictures", "proposed")
	try := w.tries()
	if !equal(try.Order, ordered) || try.CpuS <= 0 || try.Options.OrderTolerance != pecanv1.OrderTolerance_ORDER_TOLERANCE_APPROXIMATE || len(try.Components) != 1 || !proto.Equal(try.Plan, job.Plan) {
		t.Fatalf("the trial is %v", try)
	}
	w.send(&pecanv1.WorkerMessage{Kind: &pecanv1.WorkerMessage_OrderTried{OrderTried: &pecanv1.OrderTried{Id: try.Id, Trial: &pecanv1.OrderTrial{
		Elements: 50, OriginalS: 0.001, OrderedS: 0.0001, SavedLowS: 0.0008, SavedHighS: 0.001, Components: []*pecanv1.OrderDifference{{Range: 3}},
	}}}})
	explained = w.explained("pictures", "piloted")
	if explained.Trial.GetElements() != 50 || explained.PredictedAfterS >= explained.PredictedBeforeS || explained.Steps[1].Place != 2 || explained.Steps[2].Place != 1 {
		t.Fatalf("piloted: %v", explained)
	}
	if explained.Steps[1].Figures.GetElements() != 3000 {
		t.Errorf("metrics %v", explained.Steps[1].Figures)
	}
	for epoch := range uint64(2) {
		s.open("c1", job.JobId, epoch+1)
		for stream := range uint32(2) {
			start := w.start()
			for start.Id.Epoch <= epoch {
				start = w.start()
			}
			// One stream of the second epoch has the order, and all of the third.
			if has := equal(start.Plan.Order, ordered); start.Id.Stream != stream || has != (stream == 0 || epoch == 1) || !has && start.Plan.Order != nil {
				t.Fatalf("stream %d of epoch %d runs by %v", start.Id.Stream, start.Id.Epoch, start.Plan)
			}
			if start.Plan.Hash != job.Plan.Hash {
				t.Errorf("another plan: %v", start.Plan)
			}
		}
		w.inProduction(job.JobId, explained.Steps)
		explained = w.explained("pictures", "adopted")
	}
	if p := explained.Production; p.GetOrderedElements() != 1000 || p.GetRegisteredElements() != 1000 || !p.GetSameEpochs() || !(p.GetOrderedS() < p.GetRegisteredS()) {
		t.Errorf("in production %v", p)
	}
	status, err := s.client.Status(s.ctx(), &pecanv1.StatusRequest{})
	if err != nil || status.Jobs[0].Order.GetState() != "adopted" {
		t.Fatalf("status %v %v", status, err)
	}
	for n, epoch := range status.Jobs[0].Epochs {
		if epoch.Ordered != (n > 0) || len(epoch.OrderedStreams) != n%2 {
			t.Errorf("status of epoch %d is %v", n, epoch)
		}
	}
	if !proto.Equal(status.Jobs[0].Plan, job.Plan) {
		t.Errorf("the job's plan is %v", status.Jobs[0].Plan)
	}
}

// A dispatcher without a decision uses the order that a position names, if the steps may have it.
func TestAPositionResumesInTheOrderThatItNames(t *testing.T) {
	s := startService(t, serviceOptions{graphs: dispatcher.NewGraphs(dispatcher.DefaultConfig())})
	w := s.worker(workerHello("w", 64))
	asked := func(tolerance pecanv1.OrderTolerance) *pecanv1.JobOptions {
		return &pecanv1.JobOptions{Mode: pecanv1.Mode_MODE_DETERMINISTIC, Order: pecanv1.Order_ORDER_AUTO, OrderTolerance: tolerance}
	}
	dataset, err := s.registerGraph(graphOf(t, "crop_last"), specOf(dtFloat, 8, 8, 3))
	if err != nil {
		t.Fatal(err)
	}
	job := s.job("c1", "", dataset.DatasetId, asked(pecanv1.OrderTolerance_ORDER_TOLERANCE_APPROXIMATE))
	steps := s.explain(job.JobId).Steps
	if len(steps) != 3 {
		t.Fatal(steps)
	}
	cropFirst := []string{steps[0].Node, steps[2].Node, steps[1].Node}
	open := func(job *pecanv1.CreateJobResponse, client string, epoch uint64, order ...string) (*pecanv1.OpenEpochResponse, error) {
		return s.client.OpenEpoch(s.ctx(), &pecanv1.OpenEpochRequest{
			RequestId: fmt.Sprint("at-", epoch), ClientId: client, JobId: job.JobId,
			Position: &pecanv1.Position{Epoch: epoch, Next: []uint64{3}, Order: pecanv1.NewEpochOrder(job.Plan, order)},
		})
	}
	for range 2 {
		// The second time it is a repeat of the same call.
		opened, err := open(job, "c1", 4, cropFirst...)
		if err != nil || opened.Epoch != 4 || !proto.Equal(opened.Order, pecanv1.NewEpochOrder(job.Plan, cropFirst)) {
			t.Fatal(opened, err)
		}
	}
	if start := w.start(); start.Id.Epoch != 4 || !equal(start.Plan.Order, cropFirst) || start.DeliveredBelow != 3 && start.Id.Stream == 0 {
		t.Errorf("a stream runs by %v", start)
	}
	for name, order := range map[string][]string{
		"the source is not its first step": {steps[1].Node, steps[0].Node, steps[2].Node},
		"a step is missing":                cropFirst[:2],
		"a step is none of its own":        {steps[0].Node, steps[2].Node, "x"},
	} {
		if _, err := open(job, "c1", 7, order...); !reason.Is(err, reason.BadArgument) || !strings.Contains(err.Error(), "Resume with the order, the order_tolerance and the version of Pecan with which the state was saved") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func equal(a, b []string) bool { return strings.Join(a, "\n") == strings.Join(b, "\n") }

// A job without a requested order is explained, too.
func TestAJobWithoutAnOrderIsExplained(t *testing.T) {
	s := startService(t, serviceOptions{graphs: dispatcher.NewGraphs(dispatcher.DefaultConfig())})
	w := s.worker(workerHello("w", 64))
	job := s.orderedJob(nil)
	if other := s.explain("Pictures"); other.JobId != job.JobId {
		t.Errorf("by its name: %v", other)
	}
	explained := s.explain(job.JobId)
	if explained.State != "off" || explained.Why == "" || len(explained.Steps) != 3 || explained.Order != pecanv1.Order_ORDER_OFF {
		t.Errorf("explained %v", explained)
	}
	// This holds also if a cheaper order is known: no worker runs it, and readers would mistake it for the running
	// one.
	w.measured(job.JobId, explained.Steps)
	w.figured(job.JobId)
	explained = s.explain(job.JobId)
	for i, step := range explained.Steps {
		if step.Figures.GetElements() != 3000 || step.Place != uint32(i) || step.Reason != "the author's order" {
			t.Errorf("step %d, whose order is off: %v", i, step)
		}
	}
	if explained.PredictedBeforeS != 0 || explained.PredictedAfterS != 0 {
		t.Errorf("predicted of an order that is off: %v", explained)
	}
	for name, want := range map[string]reason.Reason{"nobody": reason.JobUnknown, "": reason.BadArgument, "a b": reason.BadArgument} {
		_, err := s.client.Explain(s.ctx(), &pecanv1.ExplainRequest{Job: name})
		wantReason(t, err, want)
	}
}

// failingGraphs fail to plan orders: with a panic, or an error.
type failingGraphs struct {
	dispatcher.Graphs
	panics bool
	asked  *atomic.Int32
}

func (g failingGraphs) Order(graph []byte, plan *pecanv1.Plan, options *pecanv1.JobOptions, measured ordering.Measured) (*ordering.Proposal, error) {
	switch {
	case len(measured.Nodes) == 0:
		return g.Graphs.Order(graph, plan, options, measured)
	case g.asked.Add(1) > 1:
		// Explain must work after the failure.
		return &ordering.Proposal{}, nil
	case g.panics:
		panic("an order out of bounds")
	}
	return nil, errors.New("no order will do")
}

// A failed plan leaves the registered order, and does not affect the dispatcher.
func TestAFailedPlanKeepsTheRegisteredOrder(t *testing.T) {
	for name, panics := range map[string]bool{"an error": false, "a panic": true} {
		t.Run(name, func(t *testing.T) {
			graphs := failingGraphs{dispatcher.NewGraphs(dispatcher.DefaultConfig()), panics, new(atomic.Int32)}
			s := startService(t, serviceOptions{graphs: graphs})
			w := s.worker(workerHello("w", 64))
			job := s.orderedJob(&pecanv1.JobOptions{Order: pecanv1.Order_ORDER_AUTO})
			w.measured(job.JobId, s.explain(job.JobId).Steps)
			if explained := w.explained(job.JobId, "kept"); !strings.Contains(explained.Why, "no order could be planned") {
				t.Errorf("explained %v", explained)
			}
		})
	}
}

// brokenGraphs of a store cannot be read for a while.
type brokenGraphs struct {
	dispatcher.Store
	broken *atomic.Bool
}

func (b brokenGraphs) Graph(fingerprint string) ([]byte, error) {
	if b.broken.Load() {
		return nil, store.ErrFull
	}
	return b.Store.Graph(fingerprint)
}

// A graph that cannot be read decides nothing: the core asks again.
func TestAnUnreadableGraphIsRequestedAgain(t *testing.T) {
	broken := new(atomic.Bool)
	s := startService(t, serviceOptions{graphs: dispatcher.NewGraphs(dispatcher.DefaultConfig()), store: brokenGraphs{store.NewMemory(), broken}})
	w := s.worker(workerHello("w", 64))
	job := s.orderedJob(&pecanv1.JobOptions{Order: pecanv1.Order_ORDER_AUTO})
	steps := s.explain(job.JobId).Steps
	broken.Store(true)
	w.measured(job.JobId, steps)
	w.until("asked for in vain", func(o *pecanv1.OrderStatus) bool {
		return o.State == "measuring" && strings.Contains(o.Why, "could not be read")
	})
	_, err := s.client.Explain(s.ctx(), &pecanv1.ExplainRequest{Job: job.JobId})
	wantReason(t, err, reason.StoreFull)
	broken.Store(false)
	w.until("looked at again", func(o *pecanv1.OrderStatus) bool { return o.State != "measuring" })
}

// Invalid results of a trial are repaired.
func TestAnInvalidTrialResultIsAnAnswer(t *testing.T) {
	s := startService(t, serviceOptions{})
	w := s.worker(workerHello("w", 4))
	nan := 0.0
	nan /= nan
	for _, reported := range []*pecanv1.OrderTried{nil, {}, {Id: "1-1", Trial: &pecanv1.OrderTrial{OriginalS: nan, SavedLowS: nan, Refused: strings.Repeat("x", 1<<20),
		Components: []*pecanv1.OrderDifference{{MaxDifference: nan}}}}} {
		w.send(&pecanv1.WorkerMessage{Kind: &pecanv1.WorkerMessage_OrderTried{OrderTried: reported}})
	}
	w.heartbeat()
	if status, err := s.client.Status(s.ctx(), &pecanv1.StatusRequest{}); err != nil || status.Workers[0].State != "connected" {
		t.Fatalf("%v %v", status, err)
	}
}
