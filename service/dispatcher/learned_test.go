package dispatcher_test

import (
	"cmp"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/dispatcher"
	"github.com/pecan-ml/pecan/service/dispatcher/core/durable"
	"github.com/pecan-ml/pecan/service/learned"
	"github.com/pecan-ml/pecan/service/store"
)

// learning starts a dispatcher that keeps nothing but files with what was learned.
func learning(t *testing.T, dir string) *service {
	t.Helper()
	return startService(t, serviceOptions{graphs: dispatcher.NewGraphs(dispatcher.DefaultConfig()), deps: func(deps *dispatcher.Deps) {
		files, err := learned.Open(dir, durable.CheckLearned, deps.Log)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { files.Close() })
		deps.Learned = files
	}})
}

func TestALaterDispatcherBeginsWithWhatAnEarlierOneLearned(t *testing.T) {
	dir, auto := t.TempDir(), &pecanv1.JobOptions{Order: pecanv1.Order_ORDER_AUTO, Streams: 2}
	first := learning(t, dir)
	w := first.worker(workerHello("w", 64))
	job := first.orderedJob(auto)
	w.measured(job.JobId, first.explain("pictures").Steps)
	w.explained("pictures", "proposed")
	try := w.tries()
	w.send(&pecanv1.WorkerMessage{Kind: &pecanv1.WorkerMessage_OrderTried{OrderTried: &pecanv1.OrderTried{Id: try.Id, Trial: &pecanv1.OrderTrial{
		Elements: 50, OriginalS: 0.001, OrderedS: 0.0001, SavedLowS: 0.0008, SavedHighS: 0.001,
	}}}})
	w.explained("pictures", "piloted")
	first.stop()

	second := learning(t, dir)
	w = second.worker(workerHello("w", 64))
	second.orderedJob(auto)
	// The first stream of the first epoch is the pilot.
	if start := w.start(); start.Id.Epoch != 0 || start.Id.Stream != 0 || !slices.Equal(start.Plan.Order, try.Order) {
		t.Errorf("the first stream runs by %v", start)
	}
	explained := second.explain("pictures")
	if explained.State != "piloted" || explained.Trial.GetElements() != 50 || explained.Steps[1].Figures.GetElements() != 3000 {
		t.Errorf("explained %v", explained)
	}
	state, err := second.client.ExportLearned(second.ctx(), &pecanv1.ExportLearnedRequest{})
	if err != nil {
		t.Fatal(err)
	}
	known, err := state.Recv()
	if err != nil || len(known.Learned.Histories) != 1 || len(known.Learned.Histories[0].Jobs) != 2 {
		t.Errorf("after two jobs the dispatcher knows %v (%v)", known, err)
	}
}

// A file may have an order that this version does not allow.
func TestALearnedOrderThatTheGraphDoesNotAllowIsNotUsed(t *testing.T) {
	auto := &pecanv1.JobOptions{Order: pecanv1.Order_ORDER_AUTO}
	without := startService(t, serviceOptions{graphs: dispatcher.NewGraphs(dispatcher.DefaultConfig())})
	plan := without.orderedJob(auto).Plan
	var names []string
	for _, step := range without.explain("pictures").Steps {
		names = append(names, step.Node)
	}
	slices.Reverse(names)
	dir := t.TempDir()
	files, err := learned.Open(dir, durable.CheckLearned, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer files.Close()
	files.Save(plan.Fingerprint, &pecanv1.Learned{Orders: []*pecanv1.StoredOrder{{
		Fingerprint: plan.Fingerprint, Policy: pecanv1.Order_ORDER_AUTO, Tolerance: pecanv1.OrderTolerance_ORDER_TOLERANCE_APPROXIMATE,
		PlanHash: cmp.Or(plan.OrderHash, plan.Hash), Order: names, Trial: &pecanv1.OrderTrial{Elements: 50},
	}}})
	s := learning(t, dir)
	w := s.worker(workerHello("w", 64))
	s.orderedJob(auto)
	if start := w.start(); start.Plan.Order != nil {
		t.Errorf("a stream runs in the order %v", start.Plan.Order)
	}
	if explained := s.explain("pictures"); explained.State != "rolled back" || !strings.Contains(explained.Why, "the order of an earlier job is not used") || explained.Trial.GetElements() != 50 {
		t.Errorf("explained %v", explained)
	}
}

// mergeStore notes the most records of one decision on graphs.
type mergeStore struct {
	*store.Memory
	most int
}

func (m *mergeStore) Append(records [][]byte) error {
	m.most = max(m.most, len(records))
	return m.Memory.Append(records)
}

// All others wait for a decision, so a large merge is divided.
func TestALargeMergeIsManyDecisions(t *testing.T) {
	kept := &mergeStore{Memory: store.NewMemory()}
	s := startService(t, serviceOptions{store: kept})
	l := &pecanv1.Learned{}
	for n := range 1000 {
		l.Profiles = append(l.Profiles, &pecanv1.StoredProfile{Fingerprint: fmt.Sprintf("f%03d", n)})
	}
	answer, err := s.client.MergeLearned(s.ctx(), &pecanv1.MergeLearnedRequest{Learned: l})
	if err != nil || answer.Graphs != 1000 {
		t.Errorf("%v, %v", answer, err)
	}
	// A graph that cannot have a file refuses all of them.
	l.Profiles = append(l.Profiles, &pecanv1.StoredProfile{Fingerprint: "no id"})
	l.Placements = []*pecanv1.PlacementKnown{{Fingerprint: "f000"}}
	if answer, err := s.client.MergeLearned(s.ctx(), &pecanv1.MergeLearnedRequest{Learned: l}); err == nil || !strings.Contains(err.Error(), "fingerprint") {
		t.Errorf("%v, %v", answer, err)
	}
	s.stop()
	if kept.most != 256 {
		t.Errorf("one decision has %d records, want 256", kept.most)
	}
}

// Epochs may be short for days, and each write is synced.
func TestWhatIsLearnedAllTheTimeIsWrittenSeldom(t *testing.T) {
	pause := time.Second
	for _, want := range []time.Duration{2, 4, 8, 16, 32, 60, 60} {
		if pause = dispatcher.NextPause(pause, true); pause != want*time.Second {
			t.Fatalf("the next write is after %v, want %v s", pause, int(want))
		}
	}
	if pause = dispatcher.NextPause(pause, false); pause != time.Second {
		t.Errorf("after a quiet time the next write is after %v", pause)
	}
}

// firstLine is a log that tells when it has a line.
type firstLine struct {
	once sync.Once
	came chan struct{}
}

func (f *firstLine) Write(line []byte) (int, error) {
	f.once.Do(func() { close(f.came) })
	return len(line), nil
}

// The directory may be full for a while.
func TestWhatCouldNotBeWrittenIsWrittenLater(t *testing.T) {
	dir, failed := t.TempDir(), &firstLine{came: make(chan struct{})}
	fingerprint := fmt.Sprintf("%064d", 1)
	// No file can replace a directory.
	if err := os.Mkdir(filepath.Join(dir, fingerprint+".learned"), 0o700); err != nil {
		t.Fatal(err)
	}
	files, err := learned.Open(dir, durable.CheckLearned, slog.New(slog.NewTextHandler(failed, nil)))
	if err != nil {
		t.Fatal(err)
	}
	defer files.Close()
	s := startService(t, serviceOptions{deps: func(deps *dispatcher.Deps) { deps.Learned = files }})
	if _, err := s.client.MergeLearned(s.ctx(), &pecanv1.MergeLearnedRequest{Learned: &pecanv1.Learned{Profiles: []*pecanv1.StoredProfile{{Fingerprint: fingerprint}}}}); err != nil {
		t.Fatal(err)
	}
	select {
	case <-failed.came:
	case <-time.After(wait):
		t.Fatal("nothing was written")
	}
	if err := os.Remove(filepath.Join(dir, fingerprint+".learned")); err != nil {
		t.Fatal(err)
	}
	s.stop()
	if files.Load(fingerprint) == nil {
		t.Error("nothing is kept")
	}
}
