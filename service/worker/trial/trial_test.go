package trial

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime/debug"
	"strconv"
	"strings"
	"testing"
	"time"

	graphorder "github.com/pecan-ml/pecan/service/graph/order"
	"github.com/pecan-ml/pecan/service/graph/rewrite"
	"github.com/pecan-ml/pecan/service/graph/split"

	"github.com/pecan-ml/pecan/native/tf"
	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/graph"
	"github.com/pecan-ml/pecan/service/worker/dataset"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"
)

func TestMain(m *testing.M) {
	// As in a worker, the process-wide threads of TensorFlow exist before the first trial.
	_, err := tf.NewContext(tf.ContextOptions{InterOpThreads: 2, IntraOpThreads: 2})
	if err != nil {
		panic(err)
	}
	goleak.VerifyTestMain(m)
}

// queue runs trials of the datasets of testdata/orders.py, by their names.
func queue() *Queue {
	store := dataset.NewStore(func(_ context.Context, name string) ([]byte, error) {
		return os.ReadFile(filepath.Join("..", "testdata", "order_"+name+".graph"))
	})
	return &Queue{Log: slog.New(slog.DiscardHandler), Graphs: byName{store}, AcquireOpening: acquireNothing}
}

func acquireNothing(context.Context) (func(), error) { return func() {}, nil }

// byName finds datasets by the names of their files; a plan has the fingerprint.
type byName struct{ *dataset.Store }

// stepsOf returns the steps of a dataset, source first.
func stepsOf(t *testing.T, q *Queue, name string) (parsed *graph.Graph, steps []string) {
	t.Helper()
	store, ok := q.Graphs.(byName)
	if !ok {
		t.Fatalf("datasets come from %T", q.Graphs)
	}
	parsed, err := store.Get(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	for _, step := range graphorder.TraitsOf(parsed) {
		steps = append(steps, step.Node)
	}
	return parsed, steps
}

// trying returns the command to try an order, by the positions of the steps, of a dataset of testdata/orders.py.
func trying(t *testing.T, q *Queue, name string, tolerance pecanv1.OrderTolerance, places ...int) *pecanv1.TryOrder {
	t.Helper()
	parsed, steps := stepsOf(t, q, name)
	options := &pecanv1.JobOptions{Mode: pecanv1.Mode_MODE_EXACTLY_ONCE, Seed: 3, OrderTolerance: tolerance}
	plan, err := split.MakePlan(parsed, options, split.Env{})
	if err != nil {
		t.Fatal(err)
	}
	command := &pecanv1.TryOrder{Id: "trial", Fingerprint: name, Plan: plan, Options: options, CpuS: 600}
	for _, place := range places {
		command.Order = append(command.Order, steps[place])
	}
	return command
}

// cpuSeconds is the CPU that this process has spent.
func cpuSeconds() float64 {
	var usage unix.Rusage
	if unix.Getrusage(unix.RUSAGE_SELF, &usage) != nil {
		return 0
	}
	return float64(usage.Utime.Nano()+usage.Stime.Nano()) / 1e9
}

// residentBytes is the memory that this process has.
func residentBytes(t *testing.T) int64 {
	t.Helper()
	raw, err := os.ReadFile("/proc/self/statm")
	var size, resident int64
	if err == nil {
		_, err = fmt.Sscan(string(raw), &size, &resident)
	}
	if err != nil {
		t.Fatal(err)
	}
	return resident * int64(os.Getpagesize())
}

const (
	exact       = pecanv1.OrderTolerance_ORDER_TOLERANCE_EXACT
	approximate = pecanv1.OrderTolerance_ORDER_TOLERANCE_APPROXIMATE
	anything    = pecanv1.OrderTolerance_ORDER_TOLERANCE_ANY
)

// keptThreads are created by the first trial and kept by TensorFlow.
const keptThreads = 1

func TestTrialsAcceptGoodOrdersAndRefuseBadOnes(t *testing.T) {
	q := queue()
	for what, c := range map[string]struct {
		dataset   string
		tolerance pecanv1.OrderTolerance
		places    []int
		// refused is a part of the reason, empty if the order is good.
		refused string
	}{
		"what makes less first":                      {"expensive_crop", exact, []int{0, 2, 1}, ""},
		"steps in a function":                        {"in_function", exact, []int{0, 2, 1, 3, 4, 5}, ""},
		"few elements and a large gain":              {"few", exact, []int{0, 2, 1}, ""},
		"too few elements":                           {"very_few", exact, []int{0, 2, 1}, "openings of the dataset were measured"},
		"what makes less last":                       {"crop_expensive", exact, []int{0, 2, 1}, "not faster with confidence: an element takes"},
		"the same order":                             {"expensive_crop", exact, []int{0, 1, 2}, "?"},
		"other values, and none may differ":          {"mean_crop", exact, []int{0, 2, 1}, "component 0 (float32) differs by up to"},
		"other values, and they may differ a little": {"mean_crop", approximate, []int{0, 2, 1}, "0.1 % of its range"},
		"other values, and they may":                 {"mean_crop", anything, []int{0, 2, 1}, ""},
		"elements that fail in both orders":          {"failing", exact, []int{0, 3, 2, 1}, ""},
		"elements that fail in one":                  {"filtered", exact, []int{0, 4, 3, 2, 1}, "fails in the new order only"},
		"random steps that a filter passes":          {"noise", exact, []int{0, 3, 1, 2}, ""},
		"a dataset that writes files":                {"writes", exact, []int{0, 2, 1, 3}, "writes files"},
		"an order that cannot be":                    {"expensive_crop", exact, []int{0, 2, 2}, "cannot be run in the new order"},
		"batches of several streams":                 {"batches", exact, []int{0, 2, 3, 1, 4, 5, 7, 6}, "?"},
	} {
		t.Run(what, func(t *testing.T) {
			command := trying(t, q, c.dataset, c.tolerance, c.places...)
			if what == "the same order" {
				command.CpuS = 1
			}
			trial := q.try(t.Context(), command)
			t.Log(trial)
			unsure := sanitized && strings.HasPrefix(trial.GetRefused(), "not faster with confidence")
			if c.refused == "?" && trial.GetElements() >= minElements || unsure {
				c.refused = trial.GetRefused()
			}
			if !strings.Contains(trial.GetRefused(), c.refused) || (c.refused == "") != (trial.GetRefused() == "") {
				t.Fatalf("refused: %q, want %q", trial.GetRefused(), c.refused)
			}
			if what == "the same order" && !sanitized && (trial.GetSavedLowS() > trial.GetOriginalS()/10 || trial.GetSavedHighS() < -trial.GetOriginalS()/10) {
				t.Errorf("one order is faster than itself: %v", trial)
			}
			if c.refused == "" && (trial.GetSavedLowS() <= 0 || trial.GetOrderedS() >= trial.GetOriginalS() || trial.GetElements() < minElements && c.dataset != "few") {
				t.Errorf("what is saved: %v", trial)
			}
			if c.dataset == "mean_crop" {
				first := trial.GetComponents()[0]
				if first.GetMaxDifference() <= 1 || first.GetRange() <= 0 || (c.tolerance == anything) != (first.GetBound() == -1) {
					t.Errorf("the images differ by %v", first)
				}
			}
			for i, component := range trial.GetComponents() {
				if (i > 0 || c.dataset != "mean_crop") && component.GetMaxDifference() != 0 {
					t.Errorf("component %d differs: %v", i, component)
				}
			}
		})
	}
}

// The steps after the reordered ones are the same in both orders and are not run. A batch would make a trial
// produce all its elements.
func TestATrialRunsTheGraphUpToTheLastStepThatMoved(t *testing.T) {
	q := queue()
	for name, c := range map[string]struct {
		places []int
		last   int
	}{
		"batches":        {[]int{0, 2, 1, 3, 4, 5, 6, 7}, 2},
		"failing":        {[]int{0, 2, 1, 3}, 2},
		"expensive_crop": {[]int{0, 2, 1}, 2},
		"in_function":    {[]int{0, 2, 1, 3, 4, 5}, 3},
	} {
		t.Run(name, func(t *testing.T) {
			command := trying(t, q, name, exact, c.places...)
			_, steps := stepsOf(t, q, name)
			command.RegisteredLast, command.OrderedLast = steps[c.last], command.Order[c.last]
			trial := &trial{graphs: q.Graphs, acquireOpening: q.AcquireOpening, command: command, ctx: t.Context()}
			defer trial.closeContexts()
			both := new(pair)
			defer both.close()
			lastSteps := []string{command.RegisteredLast, command.OrderedLast}
			for i, order := range [][]string{nil, command.Order} {
				plan := proto.Clone(command.Plan).(*pecanv1.Plan)
				plan.Order = order
				if err := trial.openSide(&both[i], plan, 0, lastSteps[i]); err != nil {
					t.Fatal(err)
				}
			}
			for n := range 5 {
				a, errA := both[0].it.Next()
				b, errB := both[1].it.Next()
				if (errA == nil) != (errB == nil) {
					t.Fatalf("element %d: %v, %v", n, errA, errB)
				}
				if errA != nil {
					continue
				}
				if wrong := new(differ).compare(a, b); wrong != "" {
					t.Error(wrong)
				}
				if dims := a[len(a)-1].Dims(); len(dims) > 0 {
					t.Errorf("element %d has numbers of shape %v: it is a batch", n, dims)
				}
				tf.ReleaseAll(a)
				tf.ReleaseAll(b)
			}
		})
	}
}

// The calling thread and the threads that it creates spend all CPU of the elements.
func TestSerialGraphsWorkInTheThreadsThatAreMeasured(t *testing.T) {
	q := queue()
	command := trying(t, q, "jpeg", exact, 0)
	command.Order = nil
	marked, err := markThreads()
	if err != nil {
		t.Fatal(err)
	}
	defer marked.release()
	trial := &trial{graphs: q.Graphs, acquireOpening: q.AcquireOpening, command: command, ctx: t.Context(), threads: marked}
	defer trial.closeContexts()
	both := new(pair)
	defer both.close()
	if err := trial.openSide(&both[0], command.GetPlan(), 0, ""); err != nil {
		t.Fatal(err)
	}
	one := func() {
		both[0].next(marked)
		if both[0].err != nil {
			t.Fatal(both[0].err)
		}
		both.release()
	}
	one()
	if n, err := marked.find(); err != nil || n == 0 {
		t.Fatal(n, err)
	}
	process, measured := cpuSeconds(), 0.0
	for range 50 {
		one()
		measured += both[0].cpu.Seconds()
	}
	share := measured / (cpuSeconds() - process)
	t.Logf("%.2f s of CPU, %.4f of what the process spent", measured, share)
	if share < 0.8 {
		t.Errorf("%.2f of the CPU is seen", share)
	}
}

func TestATrialThatBreaksIsAnAnswer(t *testing.T) {
	q := queue()
	command := trying(t, q, "expensive_crop", exact, 0, 2, 1)
	q.Graphs = breaking{q.Graphs}
	if trial := q.try(t.Context(), command); !strings.Contains(trial.GetRefused(), "the trial panicked: no graph today") {
		t.Errorf("refused: %q", trial.GetRefused())
	}
}

// breaking panics when it makes the second graph.
type breaking struct{ dataset.Instantiator }

func (b breaking) Instantiate(ctx context.Context, name string, plan *pecanv1.Plan, at rewrite.At) (*rewrite.StreamGraphs, error) {
	if len(plan.GetOrder()) > 0 {
		panic("no graph today")
	}
	return b.Instantiator.Instantiate(ctx, name, plan, at)
}

func TestStreamsAreSpread(t *testing.T) {
	for count := 1; count < 40; count++ {
		seen := map[int]bool{}
		for _, at := range spread(count, count) {
			seen[at] = true
		}
		if len(seen) != count {
			t.Errorf("%d of %d", len(seen), count)
		}
	}
	if got := spread(16, 4); got[0] != 0 || got[1] != 8 || got[2] != 4 || got[3] != 12 {
		t.Error(got)
	}
}

// Leaked iterators and contexts of trials would add up. TensorFlow and the allocator keep some memory, but only
// once.
func TestTrialsLeaveNothingBehind(t *testing.T) {
	q := queue()
	command := trying(t, q, "expensive_crop", exact, 0, 2, 1)
	command.CpuS = 0.15
	if sanitized {
		command.CpuS = 3
	}
	const trials, rounds, large = 4, 6, 4 << 20
	// Memory that Go has not collected yet does not count.
	held := func() int64 {
		debug.FreeOSMemory()
		return residentBytes(t)
	}
	var grown []int64
	for range rounds {
		before := held()
		for range trials {
			if trial := q.try(t.Context(), command); trial.GetElements() == 0 {
				t.Fatal(trial)
			}
		}
		if grown = append(grown, held()-before); grown[len(grown)-1] < large {
			break
		}
	}
	if grown[len(grown)-1] >= large {
		t.Errorf("%d trials a round left %d bytes behind", trials, grown)
	}
	if n, _ := markedThreads(t); n > keptThreads {
		t.Errorf("%d threads are left", n)
	}
}

// markedThreads counts the threads that trials have created or bound, and the CPU that they have spent.
func markedThreads(t *testing.T) (n int, spent time.Duration) {
	t.Helper()
	names, err := filepath.Glob("/proc/self/task/*/comm")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		if comm, err := os.ReadFile(name); err != nil || !strings.HasPrefix(string(comm), "pecan-try-") {
			continue
		}
		n++
		thread, err := strconv.Atoi(filepath.Base(filepath.Dir(name)))
		if err != nil {
			t.Fatal(err)
		}
		cpu, _ := threadCPU(thread)
		spent += cpu
	}
	return n, spent
}
