package dispatcher

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/grpc"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/dispatcher/core"
	"github.com/pecan-ml/pecan/service/internal/clock"
)

// keepEvery is the shortest time between two writes of what was learned: epochs may be short.
const keepEvery = time.Second

// recall adds what earlier dispatchers have kept of a graph, once, before jobs read it.
func (d *Dispatcher) recall(ctx context.Context, fingerprint string) error {
	if d.deps.Learned == nil {
		return nil
	}
	d.recallMu.Lock()
	defer d.recallMu.Unlock()
	if d.recalled[fingerprint] {
		return nil
	}
	if found := d.deps.Learned.Load(fingerprint); found != nil {
		if _, err := d.submit(ctx, &pecanv1.MergeLearnedRequest{Learned: found}); err != nil {
			return err
		}
		d.deps.Log.Info("earlier jobs have read a dataset", "fingerprint", fingerprint, "orders", len(found.Orders), "profiles", len(found.Profiles), "placements", len(found.Placements))
	}
	d.recalled[fingerprint] = true
	return nil
}

// keep notes that more is known of a graph.
func (d *Dispatcher) keep(fingerprint string) {
	if d.deps.Learned == nil {
		return
	}
	d.unkeptMu.Lock()
	d.unkept[fingerprint] = true
	d.unkeptMu.Unlock()
	select {
	case d.keepWake <- struct{}{}:
	default:
	}
}

// keepLearned writes what is known until ctx ends. writeLearned writes the rest.
func (d *Dispatcher) keepLearned(ctx context.Context) {
	for {
		select {
		case <-d.keepWake:
			d.writeLearned()
		case <-ctx.Done():
			return
		}
		if !clock.Sleep(ctx, keepEvery) {
			return
		}
	}
}

// writeLearned writes the graphs of which more is known now. Files may be ahead of the store by the last decisions. If the
// process dies then, they are still true: workers have measured them.
func (d *Dispatcher) writeLearned() {
	d.unkeptMu.Lock()
	unkept := d.unkept
	d.unkept = map[string]bool{}
	d.unkeptMu.Unlock()
	for fingerprint := range unkept {
		d.deps.Learned.Save(fingerprint, d.learnedOf(fingerprint))
	}
}

// learnedOf returns a copy of what is known of a graph.
func (d *Dispatcher) learnedOf(fingerprint string) *pecanv1.Learned {
	d.mu.Lock()
	defer d.mu.Unlock()
	return clone(d.core.State().LearnedOf(fingerprint))
}

// checkOrder rolls the decided order of a job back if its steps may not run in it: another dispatcher, or another version,
// decided on it. It checks an order once.
func (d *Dispatcher) checkOrder(ctx context.Context, jobID string) error {
	d.mu.Lock()
	decided := d.core.DecidedOrder(jobID)
	d.mu.Unlock()
	if decided == nil {
		return nil
	}
	key := fmt.Sprintf("%s %v %s", decided.Fingerprint, decided.Options.OrderTolerance, decided.Order.Hash)
	d.planningMu.Lock()
	defer d.planningMu.Unlock()
	if d.allowed[key] {
		return nil
	}
	graph, err := d.deps.Store.Graph(decided.Fingerprint)
	if err != nil {
		return d.storeError(err)
	}
	if _, err := d.deps.Graphs.Named(graph, decided.Plan, decided.Options, decided.Order); err != nil {
		_, err = d.submit(ctx, core.OrderRefused{JobID: jobID, Why: fmt.Sprintf("the order of an earlier job is not used: %v", err)})
		return err
	}
	d.allowed[key] = true
	return nil
}

// ExportLearned implements the service.
func (d *Dispatcher) ExportLearned(_ *pecanv1.ExportLearnedRequest, stream grpc.ServerStreamingServer[pecanv1.ExportLearnedResponse]) error {
	d.mu.Lock()
	graphs := d.core.State().LearnedGraphs()
	d.mu.Unlock()
	for _, fingerprint := range graphs {
		if err := stream.Send(&pecanv1.ExportLearnedResponse{Learned: d.learnedOf(fingerprint)}); err != nil {
			return err
		}
	}
	return nil
}

// MergeLearned implements the service.
func (d *Dispatcher) MergeLearned(ctx context.Context, req *pecanv1.MergeLearnedRequest) (*pecanv1.MergeLearnedResponse, error) {
	for _, fingerprint := range req.Learned.Graphs() {
		if err := d.check.Required("fingerprint", fingerprint); err != nil {
			return nil, err
		}
	}
	return ask[*pecanv1.MergeLearnedResponse](ctx, d, req)
}
