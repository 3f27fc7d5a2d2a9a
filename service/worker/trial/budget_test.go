package trial

import (
	"context"
	"fmt"
	"strings"
	"testing"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/graph/rewrite"
	"github.com/pecan-ml/pecan/service/worker/dataset"
)

func TestATrialKeepsItsBudget(t *testing.T) {
	q := queue()
	command := trying(t, q, "spin", exact, 0, 2, 1)
	command.CpuS = 0.5
	trial := q.try(t.Context(), command)
	if !strings.Contains(trial.GetRefused(), "a trial of 0.5 s was not enough") {
		t.Errorf("refused: %q", trial.GetRefused())
	}
	if !trial.GetInconclusive() || trial.GetElements() >= minElements || trial.GetCpuS() < 0.4 || trial.GetCpuS() > 5 {
		t.Errorf("%d elements in %g s", trial.GetElements(), trial.GetCpuS())
	}
	if q.spent.Load() == 0 {
		t.Error("what trials spend is not counted")
	}
}

func TestAnInconclusiveTrialIsContinued(t *testing.T) {
	q := queue()
	command, other := trying(t, q, "expensive_crop", exact, 0, 2, 1), trying(t, q, "spin", exact, 0, 2, 1)
	command.CpuS, other.CpuS = 0.1, 0.1
	elements := uint32(0)
	for n := 0; ; n++ {
		trial := q.try(t.Context(), command)
		if trial.GetRefused() == "" {
			break
		}
		if !trial.GetInconclusive() || trial.GetElements() < elements || n > 40 {
			t.Fatalf("trial %d: %d elements after %d: %s", n, trial.GetElements(), elements, trial.GetRefused())
		}
		if trial.GetElements() == 0 {
			// An opening takes longer than the whole trial.
			command.CpuS *= 2
		}
		elements = trial.GetElements()
		// A trial of another order in between has its own measurements.
		q.try(t.Context(), other)
	}
	if elements == 0 {
		t.Error("no trial was inconclusive, so this test shows nothing")
	}
	if len(q.inconclusive) > 1 {
		t.Errorf("%d trials are kept", len(q.inconclusive))
	}
}

func TestFewInconclusiveTrialsAreKept(t *testing.T) {
	q := queue()
	command := trying(t, q, "expensive_crop", exact, 0, 2, 1)
	command.CpuS, q.Graphs = 0.01, oneDataset{q.Graphs, command.GetFingerprint()}
	for n := range maxKept + 2 {
		command.Fingerprint = fmt.Sprint(n)
		if trial := q.try(t.Context(), command); !trial.GetInconclusive() {
			t.Fatal(trial)
		}
	}
	if len(q.inconclusive) != maxKept || q.inconclusive[maxKept-1].order != orderOf(command) {
		t.Errorf("%d trials are kept", len(q.inconclusive))
	}
}

// oneDataset has one dataset under all names.
type oneDataset struct {
	dataset.Instantiator
	name string
}

func (o oneDataset) Instantiate(ctx context.Context, _ string, plan *pecanv1.Plan, at rewrite.At) (*rewrite.StreamGraphs, error) {
	return o.Instantiator.Instantiate(ctx, o.name, plan, at)
}

// counting counts the graphs that it makes.
type counting struct {
	dataset.Instantiator
	graphs int
}

func (c *counting) Instantiate(ctx context.Context, name string, plan *pecanv1.Plan, at rewrite.At) (*rewrite.StreamGraphs, error) {
	c.graphs++
	return c.Instantiator.Instantiate(ctx, name, plan, at)
}

func TestATrialOpensNoStreamOnceItsBudgetIsSpent(t *testing.T) {
	q := queue()
	command := trying(t, q, "expensive_crop", exact, 0, 2, 1)
	made := &counting{Instantiator: q.Graphs}
	q.Graphs = made
	// A trial is cancelled at 1.25 times its budget. With several budgets, some trials end between these two.
	for _, budget := range []float64{0.08, 0.1, 0.12, 0.14, 0.16, 0.2} {
		command.CpuS, made.graphs = budget, 0
		trial := q.try(t.Context(), command)
		// An opening makes one graph in each order, and has an element unless the budget ends during its first.
		if openings := made.graphs / 2; openings > int(trial.GetElements())+1 {
			t.Errorf("%d openings for %d elements with a budget of %g s", openings, trial.GetElements(), budget)
		}
	}
}
