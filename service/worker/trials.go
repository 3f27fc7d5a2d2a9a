package worker

import (
	"context"
	"fmt"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
)

// trials runs both orders of datasets' steps where the dispatcher asks for it, one after another and beside the streams. What is tried is
// delivered to nobody and written nowhere. A trial that is cancelled is not answered: the dispatcher has another worker make it, or
// itself has gone.
type trials struct {
	worker *Worker
	// turn is held by the trial that is under way.
	turn            sync.Mutex
	passed, refused atomic.Uint64
	spent           atomic.Int64
	mu              sync.Mutex
	under           map[string]context.CancelFunc
	leaving         bool
}

// maxWaiting bounds the trials that are under way or wait for their turn.
const maxWaiting = 8

func newTrials(w *Worker) *trials { return &trials{worker: w, under: map[string]context.CancelFunc{}} }

// begin makes a trial. One that is said twice is made once.
func (t *trials) begin(command *pecanv1.TryOrder) {
	t.mu.Lock()
	defer t.mu.Unlock()
	id := command.GetId()
	if t.under[id] != nil || t.leaving {
		return
	}
	if len(t.under) >= maxWaiting {
		t.answer(command, &pecanv1.OrderTrial{Refused: fmt.Sprintf("worker %s has %d other trials to make", t.worker.describe(), len(t.under))})
		return
	}
	ctx, cancel := context.WithCancel(t.worker.lifetime)
	t.under[id] = cancel
	t.worker.running.Go(func() {
		defer t.end(id)
		t.turn.Lock()
		defer t.turn.Unlock()
		if trial := t.try(ctx, command); ctx.Err() == nil {
			t.answer(command, trial)
		}
	})
}

func (t *trials) end(id string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.under[id]()
	delete(t.under, id)
}

// cancel ends all trials without an answer; with leave no other one begins.
func (t *trials) cancel(leave bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.leaving = t.leaving || leave
	for _, cancel := range t.under {
		cancel()
	}
}

// idle tells whether no trial is under way.
func (t *trials) idle() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.under) == 0
}

func (t *trials) answer(command *pecanv1.TryOrder, trial *pecanv1.OrderTrial) {
	if trial.GetRefused() == "" {
		t.passed.Add(1)
	} else {
		t.refused.Add(1)
	}
	t.worker.log.Info("an order of steps was tried", "trial", command.GetId(), "dataset", command.GetFingerprint(), "elements", trial.GetElements(),
		"original_s", trial.GetOriginalS(), "ordered_s", trial.GetOrderedS(), "cpu_s", trial.GetCpuS(), "refused", trial.GetRefused())
	t.worker.session.send(&pecanv1.WorkerMessage{Kind: &pecanv1.WorkerMessage_OrderTried{OrderTried: &pecanv1.OrderTried{Id: command.GetId(), Trial: trial}}})
}

// try runs a trial. What goes wrong in it is a reason against the order, and nothing that the worker's streams should suffer from.
func (t *trials) try(ctx context.Context, command *pecanv1.TryOrder) (result *pecanv1.OrderTrial) {
	trial := &trial{worker: t.worker, command: command, differ: differ{tolerance: toleranceOf(command.GetOptions())}}
	defer func() {
		if broken := recover(); broken != nil {
			t.worker.log.Error("a trial broke", "trial", command.GetId(), "panic", broken, "stack", string(debug.Stack()))
			result = &pecanv1.OrderTrial{Refused: fmt.Sprintf("the trial broke: %v", broken)}
		}
		t.spent.Add(int64(result.GetCpuS() * float64(time.Second)))
	}()
	return trial.run(ctx)
}

// toleranceOf is the tolerance that a job's options mean.
func toleranceOf(options *pecanv1.JobOptions) pecanv1.OrderTolerance {
	switch {
	case options.GetOrder() == pecanv1.Order_ORDER_PAPER:
		return pecanv1.OrderTolerance_ORDER_TOLERANCE_ANY
	case options.GetOrderTolerance() == pecanv1.OrderTolerance_ORDER_TOLERANCE_UNSPECIFIED:
		return pecanv1.OrderTolerance_ORDER_TOLERANCE_APPROXIMATE
	}
	return options.GetOrderTolerance()
}
