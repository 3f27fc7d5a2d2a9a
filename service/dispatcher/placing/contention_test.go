package placing

import (
	"math"
	"strings"
	"testing"
	"time"

	"github.com/pecan-ml/pecan/policies/autoscale"
	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/dispatcher/core/measure"
)

// sharedHost is a trainer's host on which local workers run. Above a load of 1, the trainer and they slow each other down. Their
// processor time is divided by 1 + starved × (load - 1), and starved is above 1 if their priority is low.
type sharedHost struct {
	step, element, base, perLocal, starved float64
	now                                    time.Duration
}

func (h *sharedHost) window(remote, local int) *measure.Window {
	h.now += 4 * time.Second
	load := h.base + h.perLocal*float64(local)
	demand := h.step * (1 + 1.5*max(0, load-1))
	perLocal, perRemote := 1/h.element/(1+h.starved*max(0, load-1)), 1/h.element
	t := max(demand, 1/(perLocal*float64(local)+perRemote*float64(remote)))
	w := &measure.Window{
		End: h.now, Length: 3 * time.Second, Remote: remote, Local: local,
		Hosts: []*pecanv1.HostLoad{{HostId: "trainer", Cores: 8, Load: load, Pressure: min(max(load-1, 0), 1)}},
	}
	trainer := measure.Trainer{Host: "trainer"}
	for i := range 6 {
		begin := h.now - 3*time.Second + time.Duration(i)*500*time.Millisecond
		n := uint64(math.Round(0.5 / t))
		end := begin + time.Duration(float64(n)*t*float64(time.Second))
		trainer.Subs = append(trainer.Subs, measure.SubWindow{Begin: begin, End: end, Elements: n, Waited: (end - begin).Seconds() * (1 - demand/t), Queue: 1})
	}
	w.Trainers = append(w.Trainers, trainer)
	busy := 1 / t / (perLocal*float64(local) + perRemote*float64(remote))
	for i := range remote + local {
		one := measure.Serving{Host: "fleet", Cores: 8, Rates: measure.Rates{Busy: busy, CPU: busy, Elements: busy * perRemote, Share: 1}}
		if i < local {
			one.Host, one.Local, one.Elements = "trainer", true, busy*perLocal
		}
		w.Fleet = append(w.Fleet, one)
	}
	return w
}

// A private cluster has local workers only. Its search begins with those that run, stops those that the trainer does not
// need, and starts others when it waits.
func TestAPrivateClusterFollowsItsTrainer(t *testing.T) {
	h, p := &sharedHost{step: 0.04, element: 0.035, base: 0.1, perLocal: 0.05, starved: 1}, New()
	r := Request{JobID: "j", Options: &pecanv1.PlacementOptions{Objective: "cost"}, Local: 8, RegisteredLocal: 4, Running: 4}
	last, _ := p.Decide(r)
	if last.Local != 4 || last.Remote != 0 || !strings.Contains(last.Why, "that the trainer runs") {
		t.Errorf("the search begins with %v", last)
	}
	for _, c := range []struct {
		step float64
		want uint32
	}{{0.04, 1}, {0.006, 6}, {0.02, 2}} {
		h.step = c.step
		for range 14 {
			r.Window, r.Now = h.window(0, int(last.Local)), h.now
			last, _ = p.Decide(r)
		}
		if last.Local != c.want || !last.Converged {
			t.Errorf("a step of %v s: %v, want %d local workers", c.step, last, c.want)
		}
	}
	// What an earlier job found counts more, and limits count most.
	r.JobID, r.Window, r.Known = "k", nil, &pecanv1.PlacementKnown{Local: 2}
	if begun, _ := p.Decide(r); begun.Local != 2 {
		t.Errorf("a later job begins with %v", begun)
	}
	r.JobID, r.Known, r.Options = "l", nil, &pecanv1.PlacementOptions{Objective: "cost", MaxLocal: 3}
	if begun, _ := p.Decide(r); begun.Local != 3 {
		t.Errorf("with at most 3 workers, a job begins with %v", begun)
	}
}

// Local workers are used while the host is idle. They are given back when other work on the host makes them slow the
// training step, and come back afterwards. They are started on demand, so the number that may run is the limit.
func TestLocalWorkersFollowTheLoadOfTheHost(t *testing.T) {
	h, p := &sharedHost{step: 0.01, element: 0.035, base: 0.2, perLocal: 0.1, starved: 1}, New()
	r := Request{JobID: "j", Options: &pecanv1.PlacementOptions{Objective: "time"}, Remote: 8, Local: 4}
	last, _ := p.Decide(r)
	settle := func() (remote, local uint32) {
		for range 14 {
			r.Window, r.Now = h.window(int(last.Remote), int(last.Local)), h.now
			last, _ = p.Decide(r)
		}
		return last.Remote, last.Local
	}
	if remote, local := settle(); local != 4 || remote > 1 {
		t.Errorf("on an idle host, %d remote and %d local workers serve", remote, local)
	}
	h.base = 1.3
	if remote, local := settle(); local > 0 || remote < 3 {
		t.Errorf("on a busy host, %d remote and %d local workers serve", remote, local)
	}
	h.base = 0.2
	if remote, local := settle(); local < 3 || remote > 1 {
		t.Errorf("on a host that is idle again, %d remote and %d local workers serve", remote, local)
	}
}

// Other work takes nearly all of the host from a local worker of low priority. That says nothing about the time after it.
func TestAStarvedLocalWorkerComesBackToAnIdleHost(t *testing.T) {
	h, p := &sharedHost{step: 0.01, element: 0.008, base: 0.2, perLocal: 0.1, starved: 10}, New()
	r := Request{
		JobID: "j", Options: &pecanv1.PlacementOptions{Objective: "cost"}, Remote: 1, Local: 1,
		Prices: autoscale.Prices{Trainer: 1, Remote: 0.4, Local: 0.25},
	}
	last, _ := p.Decide(r)
	for _, c := range []struct {
		base          float64
		remote, local uint32
	}{{0.2, 0, 1}, {1.3, 1, 0}, {0.2, 0, 1}} {
		h.base = c.base
		for range 14 {
			r.Window, r.Now = h.window(int(last.Remote), int(last.Local)), h.now
			last, _ = p.Decide(r)
		}
		if last.Remote != c.remote || last.Local != c.local {
			t.Errorf("beside a load of %v, %d remote and %d local workers serve (%s), want %d and %d", c.base, last.Remote, last.Local, last.Why, c.remote, c.local)
		}
	}
}
