package fleet

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

// opened is a fleet whose provider has answered.
func opened(limits Limits, s State) *Fleet {
	if limits.Provider == "" {
		limits.Provider = "local"
	}
	f := New(limits)
	f.Answered(0, Answer{State: s})
	return f
}

func none() []Worker { return nil }

// more decides and returns the number that is asked for.
func more(f *Fleet, at time.Duration, wanted int, keep bool) int {
	f.Decide(at, wanted, keep, none)
	return f.desired
}

func TestMoreWorkersComeAtOnceAndFewerAfterAWhile(t *testing.T) {
	f := opened(Limits{Min: 1, Max: 10, Idle: 10 * time.Second}, State{})
	for i, step := range []struct {
		at     time.Duration
		wanted int
		keep   bool
		want   int
	}{
		{0, 0, false, 1}, {1, 5, false, 5}, {2, 99, false, 10}, {3, 8, false, 10}, {4, 2, false, 10}, {12, 3, false, 10}, {13, 2, false, 8},
		// The largest number that was wanted meanwhile stays.
		{14, 2, false, 8}, {20, 6, false, 8}, {24, 3, false, 6},
		// A short wish for more begins the time again.
		{25, 1, false, 6}, {34, 6, false, 6}, {35, 1, false, 6}, {44, 1, false, 6}, {45, 1, false, 1},
		// A job without an objective keeps what there is.
		{46, 4, false, 4}, {47, 1, true, 4}, {100, 1, true, 4}, {101, 0, false, 4}, {111, 0, false, 1},
	} {
		if got := more(f, step.at*time.Second, step.wanted, step.keep); got != step.want {
			t.Fatalf("step %d: %d workers are asked for at %v, want %d", i, got, step.at, step.want)
		}
	}
}

// A dispatcher that restarts continues with what the provider was asked for, and asks for nothing before it knows that.
func TestTheFirstAnswerIsAdopted(t *testing.T) {
	f := New(Limits{Provider: "local", Max: 9, Idle: time.Minute})
	if r := f.Decide(0, 3, false, none); r != nil {
		t.Errorf("%v is asked for before the provider has answered", r)
	}
	f.Answered(0, Answer{Error: "away"})
	if r := f.Decide(0, 3, false, none); r != nil || f.Status().Error != "away" {
		t.Errorf("%v is asked for after a failed call, which the status shows as %q", r, f.Status().Error)
	}
	f.Answered(0, Answer{State: State{Desired: 5, Ready: 5, Leaving: []string{"a:1"}, Removable: []string{"b:1", "c:1", "d:1", "e:1", "f:1"}}})
	r := f.Decide(0, 3, false, none)
	if r == nil || r.Desired != 5 || !slices.Equal(r.Leaving, []string{"a:1"}) {
		t.Errorf("%v is asked for, want what was asked for before", r)
	}
	if again := f.Decide(0, 3, false, none); again != nil {
		t.Errorf("%v is asked for again", again)
	}
}

func TestTheLeastBusyWorkersLeave(t *testing.T) {
	workers := []Worker{
		{ID: "v", Address: "10.0.0.1:7", Fixed: 1, Streams: 1, Order: 1}, {ID: "w", Address: "10.0.0.2:7", Streams: 9, Order: 2},
		{ID: "x", Address: "10.0.0.3:7", Streams: 2, Order: 3}, {ID: "y", Address: "10.0.0.4:7", Streams: 2, Order: 4},
	}
	ready := []string{"10.0.0.1", "10.0.0.2:7", "10.0.0.3", "10.0.0.4", "10.0.0.5"}
	for _, c := range []struct {
		desired int
		ordered bool
		left    string
	}{
		{5, false, ""}, {4, false, "10.0.0.5"}, {3, false, "10.0.0.5 10.0.0.4"}, {2, false, "10.0.0.5 10.0.0.4 10.0.0.3"},
		{1, false, "10.0.0.5 10.0.0.4 10.0.0.3 10.0.0.2:7"}, {0, false, "10.0.0.5 10.0.0.4 10.0.0.3 10.0.0.2:7 10.0.0.1"},
		{3, true, "10.0.0.1 10.0.0.2:7"},
	} {
		f := opened(Limits{Max: 9}, State{Desired: c.desired, Ready: len(ready), Removable: ready, Ordered: c.ordered})
		r := f.Decide(0, c.desired, false, func() []Worker { return workers })
		if got := strings.Join(r.Leaving, " "); got != c.left {
			t.Errorf("to %d workers, ordered %v: %q leave, want %q", c.desired, c.ordered, got, c.left)
		}
	}
	// Nobody starts workers of a static pool again.
	f := opened(Limits{Max: 9, Fixed: true}, State{Ready: len(ready), Removable: ready})
	if r := f.Decide(0, 1, false, none); len(r.Leaving) > 0 || f.Attainable(0, 3) != 3 {
		t.Errorf("of a static pool %v leave, and a job may count on %d of 3 workers", r.Leaving, f.Attainable(0, 3))
	}
}

func TestAnAddressMatchesWithAndWithoutItsPort(t *testing.T) {
	for _, c := range []struct {
		a, b string
		want bool
	}{
		{"10.0.0.1", "10.0.0.1:7", true}, {"10.0.0.1:7", "10.0.0.1:7", true}, {"10.0.0.1:8", "10.0.0.1:7", false}, {"10.0.0.1", "10.0.0.2:7", false},
		{"fd00::7", "[fd00::7]:5051", true}, {"[fd00::7]:1", "[fd00::7]:5051", false}, {"fd00::8", "[fd00::7]:5051", false}, {"", ":7", true},
	} {
		same := func(a, b string) bool {
			_, found := newPlaces(1, func(int) string { return a }).find(b)
			return found
		}
		if same(c.a, c.b) != c.want || same(c.b, c.a) != c.want {
			t.Errorf("%q and %q name the same worker: %v, want %v", c.a, c.b, !c.want, c.want)
		}
	}
}

// A worker leaves until the provider no longer has it. Then its address may belong to another one.
func TestALeavingWorkerIsNamedUntilItIsGone(t *testing.T) {
	f := opened(Limits{Max: 9}, State{Desired: 2, Ready: 2, Removable: []string{"a:1", "b:1"}})
	r := f.Decide(0, 1, false, none)
	if len(r.Leaving) != 1 || !f.Leaves("a:1") || f.Leaves("b:1") {
		t.Fatalf("%v leave", r.Leaving)
	}
	// A call that was made before is answered now.
	f.Answered(1, Answer{Asked: &Request{Desired: 2}, State: State{Desired: 2, Ready: 2, Removable: []string{"a:1", "b:1"}}})
	if r := f.Decide(1, 1, false, none); r != nil || !f.Leaves("a:1") {
		t.Errorf("after a late answer %v is asked for", r)
	}
	f.Answered(2, Answer{Asked: r, State: State{Desired: 1, Ready: 1, Leaving: []string{"a:1"}, Removable: []string{"b:1"}}})
	if f.Decide(2, 1, false, none) != nil || !f.Leaves("a:1") {
		t.Error("a worker that is ending is no longer named")
	}
	f.Answered(3, Answer{Asked: r, State: State{Desired: 1, Ready: 1, Removable: []string{"b:1"}}})
	if r := f.Decide(3, 1, false, none); r == nil || len(r.Leaving) > 0 || f.Leaves("a:1") {
		t.Errorf("a worker that is gone is still named: %v", r)
	}
}

func TestG9JobsDoNotCountOnWorkersThatTheProviderCannotStart(t *testing.T) {
	f := opened(Limits{Max: 9}, State{})
	stuck := Answer{State: State{Desired: 6, Requested: 2, Pending: 1, Ready: 3, Stuck: 2, Why: "quota"}}
	at := time.Duration(0)
	for _, bound := range []time.Duration{time.Minute, 2 * time.Minute, 4 * time.Minute} {
		if got := f.Attainable(at, 2); got != 9 {
			t.Fatalf("a job may count on %d workers at %v, want 9", got, at)
		}
		more(f, at, 6, false)
		f.Answered(at, stuck)
		if !f.Coming() {
			t.Error("the pending worker is not waited for")
		}
		if got := f.Attainable(at+bound-1, 2); got != 4 {
			t.Errorf("a job may count on %d workers after %v, want 4", got, bound-1)
		}
		f.Answered(at+1, Answer{State: State{Desired: 4, Ready: 4}})
		at += bound
	}
	f.Answered(at, Answer{State: State{Desired: 6, Requested: 3, Ready: 3, Stuck: 3}})
	if f.Coming() {
		t.Error("workers that cannot be had are waited for")
	}
	if s := f.Status(); s.Stuck != 3 || s.Requested != 3 || s.Ready != 3 {
		t.Errorf("the status shows %v", s)
	}
	at += time.Hour
	f.Answered(at, Answer{State: State{Desired: 6, Ready: 3}})
	if got := f.Attainable(at, 2); got != 9 {
		t.Errorf("a job may count on %d workers, want 9", got)
	}
	f.Answered(at, Answer{Error: "away", State: State{}})
	if got := f.Attainable(at, 2); got != 2 {
		t.Errorf("a job may count on %d workers of a provider that cannot be asked, want the 2 registered ones", got)
	}
	if f.Coming() || f.Status().Ready != 3 {
		t.Errorf("a provider that is away is waited for, or its last state is lost: %v", f.Status())
	}
}

// BenchmarkLeaving lets half of 10,000 workers on one host leave, and asks for each whether it leaves.
func BenchmarkLeaving(b *testing.B) {
	const workers = 10_000
	var ready []string
	var registered []Worker
	for i := range workers {
		ready = append(ready, fmt.Sprint("10.0.0.1:", i+1))
		registered = append(registered, Worker{ID: fmt.Sprint(i), Address: ready[i], Order: uint64(i)})
	}
	for b.Loop() {
		f := opened(Limits{Max: workers}, State{Desired: workers / 2, Ready: workers, Removable: ready})
		r := f.Decide(0, workers/2, false, func() []Worker { return registered })
		left := 0
		for _, w := range registered {
			if f.Leaves(w.Address) {
				left++
			}
		}
		f.Answered(1, Answer{Asked: r, State: State{Desired: workers / 2, Ready: workers, Leaving: r.Leaving, Removable: ready[:workers/2]}})
		if left != workers/2 {
			b.Fatalf("%d workers leave", left)
		}
	}
}
