package provision

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

var (
	now = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	two = rules{settle: 2 * time.Second, patience: time.Minute}
)

// pods reads machines from words. A "?" after a name means that the machine is pending, and a "-" that it is ending. A "!"
// means that it was marked long ago, and a "~" that it was marked just now. Later machines are newer.
func pods(words string) []machine {
	var all []machine
	for i, word := range strings.Fields(words) {
		name := strings.TrimRight(word, "?-!~")
		m := machine{name: name, hosts: []string{"host-" + name, name}, phase: ready, created: now.Add(time.Duration(i-50) * time.Second), ordinal: i}
		switch {
		case strings.Contains(word, "?"):
			m.phase = pending
		case strings.Contains(word, "-"):
			m.phase = ending
		}
		switch {
		case strings.Contains(word, "!"):
			m.marked = now.Add(-10 * time.Second)
		case strings.Contains(word, "~"):
			m.marked = now.Add(-time.Second)
		}
		all = append(all, m)
	}
	return all
}

func addresses(names string) []Address {
	var all []Address
	for _, name := range strings.Fields(names) {
		all = append(all, Address("host-"+name+":5051"))
	}
	return all
}

func TestAPlanBringsMachinesToTheDesiredNumber(t *testing.T) {
	for _, c := range []struct {
		name          string
		replicas      int
		machines      string
		desired       int
		leaving       string
		ordered       bool
		mark, unmark  string
		wantReplicas  int
		drop, remove  string
		reasonOfFewer string
		settlesAtOnce bool
	}{
		{name: "nothing changes", replicas: 2, machines: "a b", desired: 2, wantReplicas: 2},
		{name: "more are requested at once", replicas: 1, machines: "a", desired: 8, wantReplicas: 8},
		{name: "from nothing", replicas: 0, machines: "", desired: 3, wantReplicas: 3},
		{name: "a request is repeated without effect", replicas: 8, machines: "a", desired: 8, wantReplicas: 8},
		{name: "a request that was not met is withdrawn", replicas: 8, machines: "a b", desired: 2, wantReplicas: 2},
		{name: "pending ones go without a name, the newest first", replicas: 4, machines: "a b? c? d?", desired: 2, wantReplicas: 2, drop: "d c"},
		{name: "ready ones stay until they are named", replicas: 3, machines: "a b c", desired: 1, wantReplicas: 3, reasonOfFewer: "2 ready workers more than desired"},
		{name: "to no workers, not named", replicas: 1, machines: "a", desired: 0, wantReplicas: 1, reasonOfFewer: "1 ready workers more"},
		{name: "a named one is marked first", replicas: 3, machines: "a b c", desired: 2, leaving: "b", mark: "b", wantReplicas: 3},
		{name: "a mark settles", replicas: 3, machines: "a b~ c", desired: 2, leaving: "b", wantReplicas: 3},
		{name: "a settled one goes with the scale", replicas: 3, machines: "a b! c", desired: 2, leaving: "b", wantReplicas: 2, drop: "b"},
		{name: "while it ends", replicas: 2, machines: "a b- c", desired: 2, leaving: "b", wantReplicas: 2},
		{name: "the controller is not done", replicas: 2, machines: "a b! c", desired: 2, leaving: "b", wantReplicas: 2, drop: "b"},
		{name: "the controller chose another one", replicas: 2, machines: "a b! c-", desired: 2, leaving: "b", wantReplicas: 2, drop: "b", remove: "b"},
		{name: "one is replaced", replicas: 2, machines: "a b!", desired: 2, leaving: "b", wantReplicas: 2, drop: "b", remove: "b"},
		{name: "one leaves while more are wanted", replicas: 2, machines: "a b", desired: 4, leaving: "b", mark: "b", wantReplicas: 5},
		{name: "the caller changes its mind", replicas: 3, machines: "a b! c", desired: 3, unmark: "b", wantReplicas: 3},
		{name: "a mark without a name is removed", replicas: 3, machines: "a b! c", desired: 2, unmark: "b", wantReplicas: 3, reasonOfFewer: "1 ready workers more"},
		{name: "a named pending one", replicas: 2, machines: "a b?", desired: 1, leaving: "b", mark: "b", wantReplicas: 2},
		{name: "one of somebody else is named", replicas: 1, machines: "a", desired: 1, leaving: "z", wantReplicas: 1},
		{name: "without marks", settlesAtOnce: true, replicas: 3, machines: "a b c", desired: 2, leaving: "b", wantReplicas: 2, drop: "b"},

		{name: "ordered: more", ordered: true, replicas: 1, machines: "a", desired: 4, wantReplicas: 4},
		{name: "ordered: the last one", ordered: true, replicas: 3, machines: "a b c!", desired: 2, leaving: "c", wantReplicas: 2, drop: "c"},
		{name: "ordered: the last one is marked first", ordered: true, replicas: 3, machines: "a b c", desired: 2, leaving: "c", mark: "c", wantReplicas: 3, reasonOfFewer: "workers are removed in order: c must leave first"},
		{name: "ordered: not the last one", ordered: true, replicas: 3, machines: "a b! c", desired: 2, leaving: "b", wantReplicas: 3, reasonOfFewer: "c must leave first"},
		{name: "ordered: the last two", ordered: true, replicas: 3, machines: "a b! c!", desired: 1, leaving: "b c", wantReplicas: 1, drop: "c b"},
		{name: "ordered: pending ones", ordered: true, replicas: 5, machines: "a b c? d?", desired: 2, wantReplicas: 2, drop: "d c"},
		{name: "ordered: nothing exists", ordered: true, replicas: 5, machines: "", desired: 2, wantReplicas: 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := two
			if c.settlesAtOnce {
				r.settle = 0
			}
			act := plan(observed{replicas: c.replicas, machines: pods(c.machines), ordered: c.ordered}, c.desired, addresses(c.leaving), now, r)
			got := fmt.Sprint(act.mark, act.unmark, act.replicas, act.drop, act.remove)
			want := fmt.Sprint(strings.Fields(c.mark), strings.Fields(c.unmark), c.wantReplicas, strings.Fields(c.drop), strings.Fields(c.remove))
			if got != want {
				t.Errorf("got mark, unmark, replicas, drop, remove: %s, want %s", got, want)
			}
			if !strings.Contains(act.why, c.reasonOfFewer) || (act.why == "") != (c.reasonOfFewer == "") {
				t.Errorf("reason %q, want %q", act.why, c.reasonOfFewer)
			}
		})
	}
}

// A controller that follows a plan reaches what is wanted, removes all named machines, and removes no other ready one.
func TestPlansEndWhereTheCallerWants(t *testing.T) {
	for machines := range 6 {
		for desired := range 7 {
			for named := range 1 << machines {
				for _, prefers := range []string{"marked", "newest"} {
					follow(t, machines, desired, named, prefers)
				}
			}
		}
	}
}

// follow plays the ReplicaSet controller. It takes a wrong machine if it prefers the newest.
func follow(t *testing.T, count, desired, named int, prefers string) {
	t.Helper()
	o := observed{replicas: count}
	var leaving []Address
	for i := range count {
		name := string(rune('a' + i))
		o.machines = append(o.machines, pods(name)...)
		o.machines[i].created = now.Add(time.Duration(i-50) * time.Second)
		if named>>i&1 == 1 {
			leaving = append(leaving, addresses(name)...)
		}
	}
	at := now
	for round := range 20 {
		act := plan(o, desired, leaving, at, two)
		for i := range o.machines {
			if slices.Contains(act.mark, o.machines[i].name) {
				o.machines[i].marked = at
			}
		}
		o.replicas = act.replicas
		o.machines = slices.DeleteFunc(o.machines, func(m machine) bool { return slices.Contains(act.remove, m.name) })
		for len(o.machines) > o.replicas {
			victim := len(o.machines) - 1
			if marked := slices.IndexFunc(o.machines, func(m machine) bool { return !m.marked.IsZero() }); prefers == "marked" {
				victim = marked
			}
			if victim < 0 {
				t.Fatalf("%d machines, %d desired, named %b: the scale falls below the machines that were not named", count, desired, named)
			}
			o.machines = slices.Delete(o.machines, victim, victim+1)
		}
		for len(o.machines) < o.replicas {
			o.machines = append(o.machines, pods(fmt.Sprint("new", round, "-", len(o.machines)))...)
		}
		at = at.Add(3 * time.Second)
	}
	stayed := count - len(leaving)
	if want := max(desired, stayed); len(o.machines) != want && prefers == "marked" {
		t.Errorf("%d machines, %d desired, named %b: %d in the end, want %d", count, desired, named, len(o.machines), want)
	}
	old := 0
	for _, m := range o.machines {
		if slices.ContainsFunc(leaving, m.is) {
			t.Errorf("%d machines, %d desired, named %b: %s is still there", count, desired, named, m.name)
		}
		if len(m.name) == 1 {
			old++
		}
	}
	if prefers == "marked" && old != stayed {
		t.Errorf("%d machines, %d desired, named %b: %d of %d that were not named are left", count, desired, named, old, stayed)
	}
}

func TestStateTellsRequestedPendingAndReadyApart(t *testing.T) {
	o := observed{replicas: 6, machines: pods("a b? c? d! e-")}
	o.machines[1].created = now.Add(-time.Hour)
	o.machines[2].created = now
	s := describe(o, 5, nil, now, two)
	if s.Ready != 1 || s.Pending != 2 || s.Requested != 2 || fmt.Sprint(s.Leaving) != "[host-d host-e]" {
		t.Errorf("%+v", s)
	}
	if s.Stuck != 1 || s.Expected() != 4 || s.Why != "b: not ready after 1h0m0s" {
		t.Errorf("%+v", s)
	}
	o.refused = "exceeded quota"
	if s := describe(o, 5, nil, now, two); s.Stuck != 3 || s.Expected() != 2 {
		t.Errorf("refused: %+v", s)
	}
	o.refused, o.shortSince = "", now.Add(-30*time.Second)
	if s := describe(o, 5, nil, now, two); s.Stuck != 1 {
		t.Errorf("requested for a short time: %+v", s)
	}
	o.shortSince = now.Add(-2 * time.Minute)
	if s := describe(o, 5, nil, now, two); s.Stuck != 3 {
		t.Errorf("requested for a long time: %+v", s)
	}
	want := "5 desired: 1 ready, 2 pending, 2 requested, 2 leaving, 3 stuck: b: not ready after 1h0m0s"
	if s := describe(o, 5, nil, now, two); s.String() != want {
		t.Errorf("%s\nwant %s", s, want)
	}
	o.ordered = true
	o.machines = append(o.machines, machine{name: "f", hosts: []string{"10.0.0.6"}, phase: ready, ordinal: 9})
	if s := describe(o, 5, nil, now, two); fmt.Sprint(s.Removable) != "[10.0.0.6 host-a]" || !s.Ordered {
		t.Errorf("removable: %v", s.Removable)
	}
}

func TestAStaticPoolHasTheRegisteredWorkers(t *testing.T) {
	count := 3
	p, err := Open("static", Options{Registered: func() int { return count }})
	if err != nil {
		t.Fatal(err)
	}
	s, err := p.Reconcile(t.Context(), 5, nil)
	if err != nil || s.Ready != 3 || s.Requested != 2 || s.Stuck != 2 || s.Expected() != 3 {
		t.Errorf("%+v %v", s, err)
	}
	count = 4
	if s, err := p.Observe(t.Context()); err != nil || s.Ready != 4 || s.Expected() != 4 {
		t.Errorf("%+v %v", s, err)
	}
	if s, err := p.Reconcile(t.Context(), 3, addresses("a")); err != nil || s.Ready != 3 || s.Stuck != 0 || len(s.Leaving) != 1 {
		t.Errorf("%+v %v", s, err)
	}
}

func TestOpenExplainsWrongNames(t *testing.T) {
	for name, want := range map[string]string{
		"swarm":              `"swarm": use static, local`,
		"local":              "need the path of the program",
		"kubernetes:workers": "names no workload",
		"kubernetes:":        "names no workload",
	} {
		if _, err := Open(name, Options{}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", name, err, want)
		}
	}
}
