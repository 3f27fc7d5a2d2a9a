package trial

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/pecan-ml/pecan/native/tf"
	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/internal/clock"
	"github.com/pecan-ml/pecan/service/worker/dataset"
	"google.golang.org/protobuf/proto"
)

const (
	// maxElements bounds the elements of a trial.
	maxElements = 2000
	// maxOpenings bounds the openings of a trial. They come one after another, from streams that are spread over
	// all.
	maxOpenings = 8
	// Each opening has at least elementsEach elements if the budget lasts. After enoughElements it ends if more
	// elements would not change the result.
	elementsEach   = 5
	enoughElements = 13
	// maxDuration is less than the dispatcher's wait for an answer.
	maxDuration = 45 * time.Second
	// watchPeriod is the time between two checks whether the current element uses up the budget.
	watchPeriod = 20 * time.Millisecond
)

// These errors end a trial early.
var (
	errSpent   = errors.New("the budget is spent")
	errRefused = errors.New("the order is refused")
)

// trial runs the first elements of some streams in both orders by turns, compares them, and measures their cost.
// All of that happens in one goroutine. It measures the CPU of that goroutine's thread and of the threads that
// it creates (see rewrite.At.Serial).
type trial struct {
	graphs         dataset.Instantiator
	acquireOpening func(ctx context.Context) (release func(), err error)
	command        *pecanv1.TryOrder
	threads        *threads
	ctx            context.Context
	// contexts run the iterators. Iterators that wait for another one have their own context.
	contexts [2]*tf.Context

	measured
	refused string
	// seen counts elements that were produced in both orders, and those that failed in both.
	seen int
}

// measured is what trials of one order have measured. An inconclusive trial passes it on to the next one, so that no opening
// was in vain.
type measured struct {
	differ differ
	gain   gain
	// compared counts elements that were produced in both orders. opened counts the openings.
	compared, opened int
}

func (t *trial) run(ctx context.Context) *pecanv1.OrderTrial {
	why := t.refusal()
	if why != "" {
		return &pecanv1.OrderTrial{Refused: why}
	}
	marked, err := markThreads()
	if err != nil {
		return &pecanv1.OrderTrial{Refused: err.Error()}
	}
	defer marked.release()
	t.threads = marked
	watched, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	t.ctx = watched
	watching := make(chan struct{})
	go func() {
		defer close(watching)
		t.watch(cancel)
	}()
	defer t.closeContexts()
	err = t.streams()
	cancel(nil)
	<-watching
	return t.result(err)
}

// refusal returns the reason why no trial is possible, or an empty string.
func (t *trial) refusal() string {
	plan := t.command.GetPlan()
	switch {
	case len(t.command.GetOrder()) == 0:
		return "there is no order to try"
	case plan.GetWritesFiles():
		return "the dataset writes files, and a trial must not write files"
	case t.command.GetCpuS() <= 0:
		return "the trial has no CPU budget"
	}
	return ""
}

// budget is the CPU time that may be spent.
func (t *trial) budget() time.Duration {
	return time.Duration(min(t.command.GetCpuS(), 1e6) * float64(time.Second))
}

// watch ends a trial during an element that exceeds the budget or takes too long.
func (t *trial) watch(cancel context.CancelCauseFunc) {
	begun := time.Now()
	for clock.Sleep(t.ctx, watchPeriod) {
		if t.threads.cpu() > t.budget()+t.budget()/4 || time.Since(begun) > maxDuration {
			cancel(errSpent)
			return
		}
	}
}

// streams tries streams that are spread over all. If there are few, it tries some of them several times.
func (t *trial) streams() error {
	count := max(1, int(t.command.GetPlan().GetNumStreams()))
	order := spread(count, min(maxOpenings, count))
	for i := range maxOpenings {
		if t.threads.cpu() >= t.budget() {
			return errSpent
		}
		stream := order[t.opened%len(order)]
		t.opened++
		if err := t.stream(stream, float64(i+1)/maxOpenings); err != nil || t.gain.certain() {
			return err
		}
	}
	return nil
}

// spread returns n of count numbers such that any first few of them lie far apart.
func spread(count, n int) []int {
	var out []int
	taken := make([]bool, count)
	for parts := 1; len(out) < n; parts *= 2 {
		for part := 0; part < parts && len(out) < n; part++ {
			if at := part * count / parts; !taken[at] {
				taken[at] = true
				out = append(out, at)
			}
		}
	}
	return out
}

// stream opens one stream and tries it with the rest of a share of elements and CPU.
func (t *trial) stream(stream int, share float64) error {
	p, err := t.open(stream)
	if err != nil {
		return err
	}
	defer p.close()
	defer t.gain.next()
	for n := 0; t.mayContinue(n, share); n++ {
		over, err := t.element(p, stream, n)
		if over || err != nil {
			return err
		}
		if t.gain.n >= minElements && t.differ.verdict() != "" {
			return errRefused
		}
		if t.gain.now.n >= enoughElements && t.gain.settled() {
			return nil
		}
	}
	return nil
}

// mayContinue reports whether an opening with n elements may have another one.
func (t *trial) mayContinue(n int, share float64) bool {
	spent, budget := t.threads.cpu(), t.budget()
	return spent < budget && t.seen < maxElements && (n < elementsEach || spent < time.Duration(share*float64(budget)) && t.seen < int(share*maxElements))
}

// element produces one element in both orders. The order that goes first alternates as in A B B A, so that
// neither has the warmer caches.
func (t *trial) element(p *pair, stream, n int) (over bool, err error) {
	a, b := &p[0], &p[1]
	if n%2 == 1 {
		a, b = b, a
	}
	a.next(t.threads)
	b.next(t.threads)
	defer p.release()
	original, ordered := &p[0], &p[1]
	if err := context.Cause(t.ctx); err != nil {
		return false, err
	}
	switch {
	case errors.Is(original.err, io.EOF) && errors.Is(ordered.err, io.EOF):
		return true, nil
	case errors.Is(original.err, io.EOF):
		return false, t.refuse("stream %d has %d elements, and more in the new order", stream, n)
	case errors.Is(ordered.err, io.EOF):
		return false, t.refuse("stream %d has %d elements in the new order, and more in the registered one", stream, n)
	}
	t.seen++
	switch {
	case original.err != nil && ordered.err != nil:
		return false, nil
	case original.err != nil:
		return false, t.refuse("element %d of stream %d fails in the registered order only: %v", n, stream, original.err)
	case ordered.err != nil:
		return false, t.refuse("element %d of stream %d fails in the new order only: %v", n, stream, ordered.err)
	}
	if wrong := t.differ.compare(original.element, ordered.element); wrong != "" {
		return false, t.refuse("element %d of stream %d: %s", n, stream, wrong)
	}
	t.compared++
	if n == 0 {
		// The first element fills buffers and runs functions for the first time. It is not measured.
		_, err := t.threads.find()
		return false, err
	}
	t.gain.add(original.cpu.Seconds(), ordered.cpu.Seconds())
	return false, nil
}

func (t *trial) refuse(format string, args ...any) error {
	t.refused = fmt.Sprintf(format, args...)
	return errRefused
}

// open makes the iterators of a stream in both orders.
func (t *trial) open(stream int) (p *pair, err error) {
	// If workers have died of opening a graph, no other graph is opened meanwhile.
	release, err := t.acquireOpening(t.ctx)
	if err != nil {
		return nil, context.Cause(t.ctx)
	}
	defer release()
	plan := proto.Clone(t.command.GetPlan()).(*pecanv1.Plan)
	both := new(pair)
	defer func() {
		if p == nil {
			both.close()
		}
	}()
	lastSteps := []string{t.command.GetRegisteredLast(), t.command.GetOrderedLast()}
	for i, order := range [][]string{nil, t.command.GetOrder()} {
		plan.Order = order
		if err := t.openSide(&both[i], plan, stream, lastSteps[i]); err != nil {
			if cancelled := context.Cause(t.ctx); cancelled != nil {
				return nil, cancelled
			}
			return nil, t.refuse("stream %d cannot be run in the %s order: %v", stream, []string{"registered", "new"}[i], err)
		}
	}
	if n, err := t.threads.find(); err != nil {
		return nil, err
	} else if n == 0 {
		return nil, errors.New("the threads of a TensorFlow context cannot be identified, so their CPU cannot be measured")
	}
	return both, nil
}

// result is the result of the trial.
func (t *trial) result(err error) *pecanv1.OrderTrial {
	low, high := t.gain.interval()
	out := &pecanv1.OrderTrial{Elements: uint32(t.compared), Components: t.differ.report(), CpuS: t.threads.cpu().Seconds(), Refused: t.refused}
	out.OriginalS, out.OrderedS = t.gain.each()
	if len(t.gain.openingMeans) > 1 {
		out.SavedLowS, out.SavedHighS = low, high
	}
	wrong := t.differ.verdict()
	switch {
	case t.refused != "":
	case err != nil && !errors.Is(err, errSpent) && !errors.Is(err, errRefused):
		out.Refused = err.Error()
	case wrong != "":
		out.Refused = wrong
	default:
		spent := errors.Is(err, errSpent) || t.threads.cpu() >= t.budget()
		if out.Refused = t.gain.doubt(); out.Refused != "" && spent {
			out.Refused = fmt.Sprintf("%s; a trial of %.3g s was not enough to decide", out.Refused, t.command.GetCpuS())
			out.Inconclusive = t.gain.open()
		}
	}
	return out
}
