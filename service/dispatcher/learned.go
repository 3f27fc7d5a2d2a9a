package dispatcher

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/proto/reason"
	"github.com/pecan-ml/pecan/service/dispatcher/core"
	"github.com/pecan-ml/pecan/service/dispatcher/core/durable"
	"github.com/pecan-ml/pecan/service/internal/clock"
)

const (
	// keepFirst is the time between two writes of what was learned. While more is learned, it doubles up to keepLast: epochs may be
	// short, and each write is synced.
	keepFirst = time.Second
	keepLast  = time.Minute
	// keepLimit bounds the last write: the process must end.
	keepLimit = 10 * time.Second
	// maxAllowed bounds the orders that are known to be allowed.
	maxAllowed = 10_000
	// mergeGraphs bounds the graphs that one decision merges, because all others wait for it.
	mergeGraphs = 256
)

// kept returns what dispatchers have kept of a graph in files; nil if that is nothing.
func (d *Dispatcher) kept(fingerprint string) *pecanv1.Learned {
	if d.deps.Learned == nil {
		return nil
	}
	return d.deps.Learned.Load(fingerprint)
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
	pause := keepFirst
	for {
		select {
		case <-d.keepWake:
			d.writeLearned(ctx)
		case <-ctx.Done():
			return
		}
		if !clock.Sleep(ctx, pause) {
			return
		}
		pause = nextPause(pause, len(d.keepWake) > 0)
	}
}

// nextPause returns the time to the next write. more is true if something was learned in the last pause, or could not be
// written.
func nextPause(pause time.Duration, more bool) time.Duration {
	if !more {
		return keepFirst
	}
	return min(2*pause, keepLast)
}

// writeLearned writes the graphs of which more is known now, until ctx ends. It keeps those that could not be written for the next
// time. Files may be ahead of the store by the last decisions. If the process dies then, they are still true: workers have
// measured them.
func (d *Dispatcher) writeLearned(ctx context.Context) {
	d.unkeptMu.Lock()
	unkept := d.unkept
	d.unkept = map[string]bool{}
	d.unkeptMu.Unlock()
	if len(unkept) == 0 {
		return
	}
	for fingerprint := range unkept {
		if ctx.Err() != nil || !d.deps.Learned.Save(fingerprint, d.learnedOf(fingerprint)) {
			d.keep(fingerprint)
		}
	}
	d.deps.Learned.Sync()
}

// keepRest writes what is known before the process ends.
func (d *Dispatcher) keepRest() {
	ctx, stop := context.WithTimeout(context.Background(), keepLimit)
	defer stop()
	d.writeLearned(ctx)
	d.unkeptMu.Lock()
	defer d.unkeptMu.Unlock()
	if len(d.unkept) > 0 {
		d.deps.Log.Warn("what was learned from jobs could not be written to files", "graphs", len(d.unkept))
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
	if len(d.allowed) >= maxAllowed {
		// They are checked again.
		clear(d.allowed)
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
	if err := durable.CheckLearned(req.Learned); err != nil {
		return nil, reason.New(reason.BadArgument, "merge what was learned: %w", err)
	}
	parts, graphs := []*pecanv1.MergeLearnedRequest(nil), 0
	for fingerprint, of := range req.Learned.ByGraph() {
		if err := d.check.Required("fingerprint", fingerprint); err != nil {
			return nil, err
		}
		if graphs++; graphs%mergeGraphs == 1 {
			parts = append(parts, &pecanv1.MergeLearnedRequest{Learned: &pecanv1.Learned{}})
		}
		proto.Merge(parts[len(parts)-1].Learned, of)
	}
	sum := &pecanv1.MergeLearnedResponse{}
	for _, part := range parts {
		answer, err := ask[*pecanv1.MergeLearnedResponse](ctx, d, part)
		if err != nil {
			return nil, err
		}
		sum.Graphs += answer.Graphs
		sum.OrdersInUse += answer.OrdersInUse
	}
	return sum, nil
}
