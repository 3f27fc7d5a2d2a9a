package worker

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/worker/dataset"
)

// trying returns the command to try an order, by the positions of the steps, of a dataset of testdata/orders.py.
func trying(t *testing.T, w *Worker, name string, tolerance pecanv1.OrderTolerance, places ...int) *pecanv1.TryOrder {
	t.Helper()
	o, steps := orderable(t, w, name, &pecanv1.JobOptions{Mode: pecanv1.Mode_MODE_EXACTLY_ONCE, Seed: 3, OrderTolerance: tolerance})
	return &pecanv1.TryOrder{
		Id: "trial", Fingerprint: name, Plan: o.Plan, Options: o.Options, Order: ordered(steps, places...), CpuS: 600,
	}
}

const exact = pecanv1.OrderTolerance_ORDER_TOLERANCE_EXACT

// send sends the command for a trial to a worker with a session.
func send(c *commander, command *pecanv1.TryOrder) {
	c.commands <- &pecanv1.WorkerCommand{Kind: &pecanv1.WorkerCommand_TryOrder{TryOrder: command}}
}

func tried(m *pecanv1.WorkerMessage) (*pecanv1.OrderTried, bool) {
	return m.GetOrderTried(), m.GetOrderTried() != nil
}

// tryer is a commander with the graphs of testdata/orders.py, and the command to try an order of one of them.
func tryer(t *testing.T, name string, places ...int) (*commander, *Worker, *pecanv1.TryOrder) {
	t.Helper()
	c := newCommander()
	c.graphs = "testdata"
	w := withSession(t, c.listen(t, "127.0.0.1:0"))
	c.hello(t)
	command := trying(t, w, name, exact, places...)
	command.Fingerprint = "order_" + name
	useGraphs(w, dataset.NewStore(w.session.fetchGraph))
	return c, w, command
}

func TestATrialIsAnsweredOnce(t *testing.T) {
	c, w, command := tryer(t, "expensive_crop", 0, 2, 1)
	spin := proto.Clone(command).(*pecanv1.TryOrder)
	spin.Id, spin.CpuS = "another", 0.05
	send(c, command)
	send(c, command)
	send(c, spin)
	answers := map[string]bool{}
	for range 2 {
		answers[await(t, c, "the answer", tried).GetId()] = true
	}
	if !answers["trial"] || !answers["another"] {
		t.Fatal(answers)
	}
	waitFor(t, "the trials to end", func() bool { return w.trials.Idle() })
	if n := answered(w); n != 2 {
		t.Errorf("%d answers", n)
	}
}

// The dispatcher is lost, or assigns the trial to another worker. A slow element does not delay the worker.
func TestATrialEndsWithItsSessionAndWithTheWorker(t *testing.T) {
	for what, end := range map[string]func(*commander, *Worker){
		"a dispatcher that is lost": func(c *commander, _ *Worker) { c.vanish() },
		"a worker that leaves":      func(_ *commander, w *Worker) { w.drain(context.Background(), w.config.DrainTimeout) },
		"a worker that closes":      func(_ *commander, w *Worker) { w.endLifetime() },
	} {
		t.Run(what, func(t *testing.T) {
			c, w, command := tryer(t, "spin", 0, 2, 1)
			before := markedThreads(t)
			send(c, command)
			waitFor(t, "a trial that is under way", func() bool { return markedThreads(t) > before })
			time.Sleep(500 * time.Millisecond)
			end(c, w)
			waitFor(t, "its end", func() bool {
				return w.trials.Idle() && markedThreads(t) <= keptThreads
			})
			if n := answered(w); n != 0 {
				t.Errorf("%d answers", n)
			}
		})
	}
}

// keptThreads are created by the first trial and kept by TensorFlow.
const keptThreads = 1

// answered is how many trials a worker has answered.
func answered(w *Worker) uint64 {
	passed, refused, _ := w.trials.Load()
	return passed + refused
}

// markedThreads counts the threads that trials have created or bound.
func markedThreads(t *testing.T) (n int) {
	t.Helper()
	names, err := filepath.Glob("/proc/self/task/*/comm")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		if comm, err := os.ReadFile(name); err == nil && strings.HasPrefix(string(comm), "pecan-try-") {
			n++
		}
	}
	return n
}
