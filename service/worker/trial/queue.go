package trial

import (
	"context"
	"fmt"
	"log/slog"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/worker/dataset"
	"github.com/pecan-ml/pecan/service/worker/identity"
)

// Queue runs trials of orders for the dispatcher, one after another, while streams run. Elements of trials go
// to no reader, and nothing is written. A cancelled trial is not answered: the dispatcher gives it to another
// worker, or is gone itself.
type Queue struct {
	Log      *slog.Logger
	Identity *identity.Identity
	// Lifetime ends when the worker closes. The worker then waits for the goroutines in Running.
	Lifetime context.Context
	Running  *sync.WaitGroup
	// Send queues a message for the dispatcher.
	Send func(messages ...*pecanv1.WorkerMessage)
	// Graphs instantiates the graphs of streams.
	Graphs dataset.Instantiator
	// AcquireOpening is called before a graph is opened, and release afterwards. If workers have died of opening a graph, no
	// other graph is opened meanwhile.
	AcquireOpening func(ctx context.Context) (release func(), err error)

	// current is held by the current trial. inconclusive has what the last trials measured that decided nothing, the oldest first.
	current         sync.Mutex
	inconclusive    []kept
	passed, refused atomic.Uint64
	spent           atomic.Int64
	mu              sync.Mutex
	running         map[string]context.CancelFunc
	closed          bool
}

// maxWaiting bounds the trials that run or wait. maxKept bounds the inconclusive trials that may be continued.
const maxWaiting, maxKept = 8, 4

// Begin starts a trial. A repeated command has no effect.
func (q *Queue) Begin(command *pecanv1.TryOrder) {
	q.mu.Lock()
	defer q.mu.Unlock()
	id := command.GetId()
	if q.running[id] != nil || q.closed {
		return
	}
	if len(q.running) >= maxWaiting {
		q.answer(command, &pecanv1.OrderTrial{Refused: fmt.Sprintf("worker %s has %d other trials to run", q.Identity, len(q.running))})
		return
	}
	ctx, cancel := context.WithCancel(q.Lifetime)
	if q.running == nil {
		q.running = map[string]context.CancelFunc{}
	}
	q.running[id] = cancel
	q.Running.Go(func() {
		defer q.end(id)
		q.current.Lock()
		defer q.current.Unlock()
		if trial := q.try(ctx, command); ctx.Err() == nil {
			q.answer(command, trial)
		}
	})
}

func (q *Queue) end(id string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.running[id]()
	delete(q.running, id)
}

// Cancel ends all trials without an answer. If closing is set, no other trial begins.
func (q *Queue) Cancel(closing bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed = q.closed || closing
	for _, cancel := range q.running {
		cancel()
	}
}

// Idle reports whether no trial runs or waits.
func (q *Queue) Idle() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.running) == 0
}

func (q *Queue) answer(command *pecanv1.TryOrder, trial *pecanv1.OrderTrial) {
	if trial.GetRefused() == "" {
		q.passed.Add(1)
	} else {
		q.refused.Add(1)
	}
	q.Log.Info("a trial of an order ended", "trial", command.GetId(), "dataset", command.GetFingerprint(), "elements", trial.GetElements(),
		"original_s", trial.GetOriginalS(), "ordered_s", trial.GetOrderedS(), "cpu_s", trial.GetCpuS(), "refused", trial.GetRefused())
	q.Send(&pecanv1.WorkerMessage{Kind: &pecanv1.WorkerMessage_OrderTried{OrderTried: &pecanv1.OrderTried{Id: command.GetId(), Trial: trial}}})
}

// try runs a trial. A failure or panic in it refuses the order and does not harm the worker's streams.
func (q *Queue) try(ctx context.Context, command *pecanv1.TryOrder) (result *pecanv1.OrderTrial) {
	trial := &trial{graphs: q.Graphs, acquireOpening: q.AcquireOpening, command: command, measured: measured{differ: differ{tolerance: toleranceOf(command.GetOptions())}}}
	tried := orderOf(command)
	if at := slices.IndexFunc(q.inconclusive, func(k kept) bool { return k.order == tried }); at >= 0 {
		trial.measured = q.inconclusive[at].measured
		q.inconclusive = slices.Delete(q.inconclusive, at, at+1)
	}
	defer func() {
		if broken := recover(); broken != nil {
			q.Log.Error("a trial panicked", "trial", command.GetId(), "panic", broken, "stack", string(debug.Stack()))
			result = &pecanv1.OrderTrial{Refused: fmt.Sprintf("the trial panicked: %v", broken)}
		}
		q.spent.Add(int64(result.GetCpuS() * float64(time.Second)))
	}()
	if result = trial.run(ctx); result.GetInconclusive() {
		q.inconclusive = append(q.inconclusive, kept{tried, trial.measured})
		q.inconclusive = q.inconclusive[max(0, len(q.inconclusive)-maxKept):]
	}
	return result
}

// kept is what trials of an order have measured.
type kept struct {
	order string
	measured
}

// orderOf returns a text that is equal for trials of the same order of the same dataset, which may continue one another.
func orderOf(command *pecanv1.TryOrder) string {
	return fmt.Sprintf("%q", append([]string{
		command.GetFingerprint(), command.GetPlan().GetHash(), toleranceOf(command.GetOptions()).String(), command.GetRegisteredLast(), command.GetOrderedLast(),
	}, command.GetOrder()...))
}

// Load returns the results of trials since the worker started, and their CPU time.
func (q *Queue) Load() (passed, refused uint64, spent time.Duration) {
	return q.passed.Load(), q.refused.Load(), time.Duration(q.spent.Load())
}
