package placing

import (
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/dispatcher/core/measure"
)

// job is a job whose trainer has a fixed step and whose workers take a fixed time for an element.
type job struct {
	step, element float64
	// buffers hides the work of workers that are not the bound, as the buffers of graphs do.
	buffers bool
	// ends is set if an epoch ends in the window, so that workers have no stream for half of it.
	ends bool
	now  time.Duration
}

// window returns what a job shows with some workers.
func (j *job) window(workers int) *measure.Window {
	j.now += 4 * time.Second
	t := max(j.step, j.element/float64(workers))
	w := &measure.Window{End: j.now, Length: 3 * time.Second, Remote: workers}
	trainer := measure.Trainer{Host: "trainer"}
	for i := range 6 {
		begin := j.now - 3*time.Second + time.Duration(i)*500*time.Millisecond
		n := uint64(math.Round(0.5 / t))
		// The sub-window is as long as its elements take.
		end := begin + time.Duration(float64(n)*t*float64(time.Second))
		trainer.Subs = append(trainer.Subs, measure.SubWindow{Begin: begin, End: end, Elements: n, Waited: (end - begin).Seconds() * (1 - j.step/t), Queue: 1})
	}
	w.Trainers = append(w.Trainers, trainer)
	busy := j.element / float64(workers) / t
	if j.buffers && busy < 0.99 {
		busy = 0.01
	}
	rate := 1 / t / float64(workers)
	if j.ends {
		rate /= 2
	}
	for range workers {
		w.Fleet = append(w.Fleet, measure.Serving{Host: "fleet", Cores: 2, Rates: measure.Rates{Busy: busy, CPU: 0.05, Elements: rate, Share: 1}})
	}
	return w
}

// run lets a placer decide on a job until it has converged, and returns the numbers of remote workers.
func (j *job) run(t *testing.T, p *Placer, r Request, windows int) (path []int, last *pecanv1.Placement, known *pecanv1.PlacementKnown) {
	t.Helper()
	last, _ = p.Decide(r)
	for range windows {
		path = append(path, int(last.Remote))
		if last.Remote < 1 || last.Remote > uint32(r.Remote) || last.Local > 0 {
			t.Fatalf("%d remote and %d local workers are wanted of %d remote ones", last.Remote, last.Local, r.Remote)
		}
		r.Window, r.Now = j.window(int(last.Remote)), j.now
		last, known = p.Decide(r)
	}
	return append(path, int(last.Remote)), last, known
}

func TestASearchFindsTheFewestWorkersAtFullSpeed(t *testing.T) {
	for _, buffers := range []bool{false, true} {
		j, p := &job{step: 0.01, element: 0.055, buffers: buffers}, New()
		r := Request{JobID: "j", Options: &pecanv1.PlacementOptions{Objective: "cost"}, Remote: 16}
		path, last, known := j.run(t, p, r, 8)
		// 0.055 s / 0.01 s are 5.5 workers.
		if last.Remote != 6 || !last.Converged || path[0] != 1 {
			t.Errorf("buffers %v: the search went over %v and is converged: %v", buffers, path, last.Converged)
		}
		if !strings.Contains(last.Why, "without prices") || len(last.Candidates) < 2 {
			t.Errorf("buffers %v: the reason is %q, with %d candidates", buffers, last.Why, len(last.Candidates))
		}
		// A later job begins there.
		r.JobID, r.Known = "k", known
		if begun, _ := p.Decide(r); begun.Remote != 6 || !strings.Contains(begun.Why, "an earlier job") {
			t.Errorf("buffers %v: a later job begins with %v", buffers, begun)
		}
	}
}

func TestASearchPaysForItselfInTheElementsThatAreLeft(t *testing.T) {
	j, p := &job{step: 0.01, element: 0.055}, New()
	r := Request{JobID: "j", Options: &pecanv1.PlacementOptions{Objective: "cost"}, Remote: 16}
	// One worker needs 5.5 s for 100 elements: less than the two windows of 3 s that a probe costs.
	r.Left = 100
	if path, last, _ := j.run(t, p, r, 8); last.Remote != 1 || !last.Converged || !strings.Contains(last.Why, "in 1 windows") {
		t.Errorf("for 100 elements the search went over %v: %s", path, last.Why)
	}
	// The trainer begins further epochs, and other jobs have as many elements or an unknown number.
	r.Left = 20_000
	for _, id := range []string{"j", "k", "l"} {
		r.JobID = id
		if path, last, _ := j.run(t, p, r, 8); last.Remote != 6 || !last.Converged {
			t.Errorf("job %s, for %v elements: the search went over %v: %s", id, r.Left, path, last.Why)
		}
		if id == "k" {
			r.Left = 0
		}
	}
}

func TestASearchFollowsItsTrainer(t *testing.T) {
	j, p := &job{step: 0.01, element: 0.055}, New()
	r := Request{JobID: "j", Options: &pecanv1.PlacementOptions{Objective: "time"}, Remote: 16}
	j.run(t, p, r, 8)
	for _, c := range []struct {
		step float64
		want uint32
	}{{0.02, 3}, {0.005, 11}, {0.01, 6}} {
		j.step = c.step
		if path, last, _ := j.run(t, p, r, 12); last.Remote != c.want {
			t.Errorf("a step of %v s: the search went over %v, want %d workers", c.step, path, c.want)
		}
	}
}

// A worker without a stream is neither busy nor blocked. So the end of an epoch must not count as the speed of workers.
func TestTheEndOfAnEpochDoesNotKeepWorkers(t *testing.T) {
	j, p := &job{step: 0.01, element: 0.055}, New()
	r := Request{JobID: "j", Options: &pecanv1.PlacementOptions{Objective: "cost"}, Remote: 4}
	j.run(t, p, r, 8)
	j.ends = true
	if path, last, _ := j.run(t, p, r, 1); last.Remote != 4 {
		t.Fatalf("the trainer waits for 4 workers, and the search went over %v", path)
	}
	j.ends, j.step = false, 0.02
	// 0.055 s / 0.02 s are 2.75 workers.
	if path, last, _ := j.run(t, p, r, 12); last.Remote != 3 || !last.Converged {
		t.Errorf("the search went over %v, want 3 workers: %s", path, last.Why)
	}
}

func TestLimitsAreKept(t *testing.T) {
	for _, c := range []struct {
		options *pecanv1.PlacementOptions
		want    uint32
	}{
		{&pecanv1.PlacementOptions{Objective: "time", MaxRemote: 4}, 4},
		{&pecanv1.PlacementOptions{Objective: "time", MinRemote: 9}, 9},
		{&pecanv1.PlacementOptions{Objective: "time", MinRemote: 99}, 16},
	} {
		j := &job{step: 0.01, element: 0.055}
		if path, last, _ := j.run(t, New(), Request{JobID: "j", Options: c.options, Remote: 16}, 8); last.Remote != c.want {
			t.Errorf("%v: the search went over %v, want %d", c.options, path, c.want)
		}
	}
	// A budget needs prices. Without them, the job keeps its workers.
	for _, c := range []struct {
		r             Request
		remote, local uint32
	}{
		{Request{Remote: 9, Registered: 5, Local: 2, RegisteredLocal: 2}, 5, 2},
		// None is started.
		{Request{Remote: 9, Registered: 1, Local: 4, RegisteredLocal: 2}, 1, 2},
		{Request{Remote: 9, Local: 4, RegisteredLocal: 2}, 0, 2},
		{Request{Remote: 9, Registered: 5, Local: 4}, 5, 0},
		// A job needs one.
		{Request{Remote: 9, Local: 4}, 1, 0},
		{Request{Local: 4}, 0, 1},
	} {
		c.r.JobID, c.r.Options = "j", &pecanv1.PlacementOptions{Objective: "budget", BudgetPerHour: 3}
		if d, _ := New().Decide(c.r); d.Remote != c.remote || d.Local != c.local || !strings.Contains(d.Why, "--prices") {
			t.Errorf("of %d remote workers with %d registered, and %d local ones with %d, a budget without prices gives %v", c.r.Remote, c.r.Registered, c.r.Local, c.r.RegisteredLocal, d)
		}
	}
}

func TestATrainerThatLivesOnFullBuffersIsNoFastJob(t *testing.T) {
	j, s := &job{step: 0.01, element: 0.04}, &search{}
	w := j.window(4)
	// Two of four workers left. The trainer still takes 100 elements per second, and 50 are produced.
	w.Remote, w.Fleet = 2, w.Fleet[:2]
	got := s.windowOf(w, 1)
	if elementTime := got.ElementTime(); math.Abs(elementTime-0.02) > 0.001 || math.Abs(got.Wait()-0.5) > 0.05 {
		t.Errorf("the element time is %v and the wait %v, want 0.02 and 0.5", elementTime, got.Wait())
	}
	// Buffers that fill change nothing: more is produced than taken.
	w = j.window(4)
	for i := range w.Fleet {
		w.Fleet[i].Elements *= 2
	}
	if got := s.windowOf(w, 1); math.Abs(got.ElementTime()-0.01) > 0.001 || got.Wait() > 0.05 {
		t.Errorf("while buffers fill, the element time is %v and the wait %v", got.ElementTime(), got.Wait())
	}
}

func TestSearchesOfIdleJobsAreForgotten(t *testing.T) {
	p := New()
	for n := range 100 {
		p.Decide(Request{JobID: fmt.Sprint(n), Options: &pecanv1.PlacementOptions{Objective: "time"}, Remote: 4, Now: time.Duration(n) * time.Minute})
	}
	if len(p.jobs) > 12 {
		t.Errorf("%d searches are kept", len(p.jobs))
	}
}

// A decision on a cache predicts how many workers a job needs with it. The search for the new plan begins there, and finds another
// number if the prediction is wrong.
func TestASearchBeginsAtThePrediction(t *testing.T) {
	for _, predicted := range []int{2, 6} {
		j, p := &job{step: 0.01, element: 0.075}, New()
		r := Request{JobID: "j", Options: &pecanv1.PlacementOptions{Objective: "cost"}, Remote: 16, Predicted: measure.Predicted{Stage: "compute", Remote: 8}}
		if begun, _ := p.Decide(r); begun.Remote != 8 || !strings.Contains(begun.Why, "expects to need") {
			t.Errorf("the job begins with %v", begun)
		}
		if path, last, _ := j.run(t, p, r, 8); last.Remote != 8 || !last.Converged {
			t.Fatalf("the search went over %v", path)
		}
		// The cache is complete, and two workers are enough.
		j.element, r.Plan, r.Predicted = 0.015, 1, measure.Predicted{Stage: "get", Remote: predicted}
		r.Window, r.Now = j.window(8), j.now
		last, _ := p.Decide(r)
		if last.Remote != uint32(predicted) || !strings.Contains(last.Why, "the plan of the job changed, and is predicted to need") {
			t.Errorf("the new search begins with %v", last)
		}
		for range 10 {
			r.Window, r.Now = j.window(int(last.Remote)), j.now
			last, _ = p.Decide(r)
		}
		if last.Remote != 2 || !last.Converged {
			t.Errorf("predicted %d: the search ends with %v", predicted, last)
		}
		// An order changes the plan, too. The prediction is used up.
		r.Plan = 2
		r.Window, r.Now = j.window(2), j.now
		if last, _ = p.Decide(r); strings.Contains(last.Why, "predicted") {
			t.Errorf("after another change: %v", last)
		}
	}
}

// What a user sees of a search tells why it does not go on.
func TestADecisionNamesTheCauseOfAnUnusableWindow(t *testing.T) {
	for _, c := range []struct {
		why    string
		change func(*measure.Window)
	}{
		{"reports of a trainer are missing", func(w *measure.Window) { w.Gap, w.Trainers[0].Subs[2].Lost = true, true }},
		{"a training loop paused", func(w *measure.Window) { w.Gap = true }},
		// A report before the window is missing.
		{"a training loop paused", func(w *measure.Window) { w.Gap, w.Trainers[0].Subs[0].Lost = true, true }},
		{"other jobs began or ended on the workers", func(w *measure.Window) { w.Disturbed = true }},
	} {
		j, p := &job{step: 0.01, element: 0.055}, New()
		r := Request{JobID: "j", Options: &pecanv1.PlacementOptions{Objective: "cost"}, Remote: 16}
		unusable := func(workers int) *pecanv1.Placement {
			r.Window, r.Now = j.window(workers), j.now
			c.change(r.Window)
			d, _ := p.Decide(r)
			return d
		}
		p.Decide(r)
		if d := unusable(1); d.Remote != 1 || !strings.Contains(d.Why, "the window is not usable: "+c.why) {
			t.Errorf("%s: %v", c.why, d)
		}
		r.Window = nil
		_, found, _ := j.run(t, p, r, 8)
		if d := unusable(6); !d.Converged || d.Remote != 6 || d.Why != found.Why+"; the newest window is not usable: "+c.why {
			t.Errorf("%s, after the search: %v", c.why, d)
		}
	}
}
