package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"

	"github.com/pecan-ml/pecan/policies/autoplacement"
	"github.com/pecan-ml/pecan/policies/autoscale"
	"github.com/pecan-ml/pecan/policies/sim"
	"github.com/pecan-ml/pecan/service/dispatcher/placing"
)

// windowOf returns the measurement window of a recorded decision. All trainers and all workers of a kind are alike in it. No
// policy looks at the use of the local workers' processors.
func windowOf(r placing.Event) autoscale.Window {
	w := autoscale.Window{
		End: r.AtS, Seconds: r.Seconds, Workers: autoscale.Configuration{Remote: r.Remote, Local: r.Local}, Settled: !r.Disturbed, Gap: r.Gap, Plan: r.Plan,
	}
	var cpu, queue float64
	if r.CPU != nil {
		cpu = *r.CPU
	}
	if r.Queue != nil {
		queue = *r.Queue
	}
	for range r.Trainers {
		w.Consumers = append(w.Consumers, autoscale.Consumer{Host: "trainer", ElementTimes: []float64{r.ElementS}, Waits: []float64{r.Wait}, Queue: queue})
	}
	all := float64(r.Remote + r.Local)
	remoteBusy := (r.Busy*all - r.LocalBusy*float64(r.Local)) / float64(max(r.Remote, 1))
	add := func(n int, local bool, host string, busy, produced float64) {
		for range n {
			w.Fleet = append(w.Fleet, autoscale.Worker{Host: host, Local: local, Busy: busy, CPU: cpu, Elements: produced / float64(n)})
		}
	}
	add(r.Remote, false, "other", remoteBusy, r.ProducedS-r.LocalProducedS)
	add(r.Local, true, "trainer", r.LocalBusy, r.LocalProducedS)
	w.Hosts = []autoscale.Host{{ID: "trainer", Load: r.Load}}
	return w
}

// lacks reports whether a recorded decision lacks a measurement that a policy decides from.
func lacks(r placing.Event, p autoscale.Policy) bool {
	switch p.(type) {
	case *autoscale.HPA:
		return r.CPU == nil && r.Remote > 0
	case *autoscale.Cachew:
		return r.Queue == nil
	}
	return false
}

func goalOf(r placing.Event) autoscale.Goal {
	return autoscale.Goal{Objective: autoscale.Objective(r.Objective), Budget: r.Budget, Prices: r.Prices, Limits: r.Limits, Trainers: r.Trainers}
}

// replay shows what policies decide from recorded measurements. The job itself followed the recorded decisions, so policies
// that wait for their own workers may wait in vain. A policy whose measurements are missing has "-".
func replay(name string, policies []sim.Named, out io.Writer) error {
	file, err := os.Open(name)
	if err != nil {
		return err
	}
	defer file.Close()
	jobs, windows := map[string][]autoscale.Policy{}, 0
	fmt.Fprintf(out, "%-8s %-26s %8s %8s %8s %5s %9s", "at", "job", "running", "element", "wait", "busy", "recorded")
	for _, p := range policies {
		fmt.Fprintf(out, " %12s", p.Name)
	}
	fmt.Fprintln(out)
	lines := bufio.NewScanner(file)
	lines.Buffer(nil, 16<<20)
	for n := 1; lines.Scan(); n++ {
		var r placing.Event
		if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
			return fmt.Errorf("%s, line %d: %w", name, n, err)
		}
		if err := goalOf(r).Validate(); err != nil {
			return fmt.Errorf("%s, line %d: %w", name, n, err)
		}
		if jobs[r.Job] == nil {
			for _, p := range policies {
				jobs[r.Job] = append(jobs[r.Job], p.New())
			}
		}
		if r.Trainers == 0 {
			// The first decision of a job comes before its first window.
			continue
		}
		windows++
		fmt.Fprintf(out, "%-8s %-26s %8s %6.1fms %7.0f%% %4.0f%% %9s", fmt.Sprintf("%.1fs", r.AtS), r.Job, pair(r.Remote, r.Local), 1000*r.ElementS,
			100*r.Wait, 100*r.Busy, pair(r.Target.Remote, r.Target.Local))
		for _, p := range jobs[r.Job] {
			if lacks(r, p) {
				fmt.Fprintf(out, " %12s", "-")
				continue
			}
			if search, is := p.(*autoplacement.Search); is && r.Horizon > 0 {
				search.Horizon = r.Horizon
			}
			d := p.Next(goalOf(r), windowOf(r))
			fmt.Fprintf(out, " %12s", pair(d.Target.Remote, d.Target.Local))
		}
		fmt.Fprintln(out)
	}
	if err := lines.Err(); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	if windows == 0 {
		return fmt.Errorf("%s: no decision has a measurement window", name)
	}
	return nil
}

// pair formats numbers of remote and local workers.
func pair(remote, local int) string { return fmt.Sprintf("%d+%d", remote, local) }
