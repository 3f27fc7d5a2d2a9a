package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/pecan-ml/pecan/policies/sim"
)

const head = `# How many workers: the policies compared

` + "`make simulate`" + ` simulates jobs with every policy for workers, and writes this page and its picture from the event log of all decisions.
It needs no service. %d jobs of each kind run for each policy, with %d measurement windows if they do not change. All policies see the same jobs.
A change of workers takes one to three further windows until it has settled.

Each window has normal noise of 3 %%, and 5 %% of the windows are outliers of ±30 %%. [0013](../design/0013-autoscaling.md) describes the surfaces, and the
default policy ` + "`search`" + `. The others are there for comparison. They are Pecan's placement and Cachew's scaling, each as in the paper and as in the published code,
the autoscaler of Kubernetes (` + "`hpa`" + `), FastFlow's split, and one collocated worker.

` + "`fastflow`" + ` has the two remote and two local workers of the comparison in Pecan's paper. It also divides the steps of each element. The first of six steps run on
workers, and the last ones may run in the trainer's process. That process is as fast as one more local worker, and the job pays for it like that. ` + "`fastflow`" + ` measures each
division in one window and keeps the fastest; Pecan's experiments name the step by hand. Two things are simpler than in FastFlow: an element has the same size after
each step, and another division settles at once. On the published curves ` + "`fastflow`" + ` divides nothing, because they say nothing about work on the trainer's host.

Kubernetes decides every 15 s. Here ` + "`hpa`" + ` decides at the end of each window of %d elements, which may take minutes. It also decides in windows in which its
last change settles, from the workers that serve meanwhile. So it may follow a job more slowly here. Windows have outliers, and no broken clocks.
So the rule of the published code that ignores a change above 120 %% (Cachew) or 130 %% (Pecan) hardly counts.

Numbers are those of all jobs of a kind: the median, and in parentheses the 5th to the 95th percentile.

![Price above the best fixed workers over time, and the summary of all jobs](placement.svg)

`

// page returns the page of a report as Markdown.
func page(r *sim.Report) string {
	var b strings.Builder
	first := r.Summaries[0]
	fmt.Fprintf(&b, head, len(first.Bills), len(first.Regrets), sim.PublishedElements)
	b.WriteString("## Marks\n\nThe default policy must reach them in every kind of jobs. The worst kind is shown.\n\n| measured | must reach | reached |\n| --- | --- | --- |\n")
	for _, m := range marks(r) {
		fmt.Fprintf(&b, "| %s | %s | %s |\n", m.measured, m.bound, map[bool]string{true: "yes", false: "**no**"}[m.reached])
	}
	fmt.Fprintf(&b, `
## Jobs that do not change

*Price* is that of an element in the last window, above the best fixed workers. *Windows* are those until the policy first converged. *All windows* and *time*
also have those in which changes of workers settled. Policies that never converge count all. *Epoch* is the price of %d,000 elements with the search, the mean of the whole job.
*Bill* is that of the whole job, over that of the best fixed workers. *Changes* are those of the workers in the last 50 windows, with their mean instead of the median. *Calm* is the share of the jobs with at most %d.
`, sim.EpochElements/1000, mostChanges)
	for _, name := range sim.Families {
		fmt.Fprintf(&b, "\n### %s\n\n| policy | price | windows | all windows | time, s | epoch, $ | bill | changes | calm |\n| --- | --- | --- | --- | --- | --- | --- | --- | --- |\n", titles[name])
		for _, s := range family(r, sim.Stable, name) {
			fmt.Fprintf(&b, "| %s | %s | %s | %s | %s | %s | %s | %.2f %s | %s |\n", s.Policy, spread(s.Final(), percent), spread(s.Converged, whole), spread(s.Elapsed, whole),
				spread(s.Seconds, whole), spread(s.Prices, hundredths), spread(s.Bills, hundredths), sim.Mean(s.Changes), interval(s.Changes, whole), percent(calm(s)))
		}
	}
	changed(&b, r)
	curves(&b, r)
	b.WriteString(tail)
	return b.String()
}

const tail = `
## Reproduce it

` + "```sh" + `
make simulate                                    # 200 jobs of each kind: this page, placement.svg and build/simulate/decisions.csv
go run ./benchmarks/simulate --seeds 20          # a table only
go run ./benchmarks/simulate --from build/simulate/decisions.csv --page docs/benchmarks   # draw an event log again
go run ./benchmarks/simulate --replay decisions.jsonl   # what each policy decides from the measurements of a --decisions-log
` + "```" + `

A run follows from its seed, so the page changes only with the policies. The event log has a line for each decision. It names the scenario, the policy, the seed,
the window, the workers, the wanted workers and the reason. It also has the time and the bill of the window (price per hour × seconds per element), and the bill of the
best fixed workers.

A replay shows what each policy decides from recorded measurements. The recorded job followed its own decisions, so a policy that adds one worker at a time
waits for a window with that number.

The switches of Pecan's predecessors are flags of the command. They apply to the versions of the published code:

| switch | flag | field |
| --- | --- | --- |
| ` + "`scaling_policy`" + ` | ` + "`--scaling-policy`" + `: 1, 2 or 3 | ` + "`autoscale.CachewCode`, `autoscale.Fixed`, `autoplacement.IncDec`" + ` |
| ` + "`scaling_threshold_up`" + ` | ` + "`--scaling-threshold-up`" + ` | ` + "`Cachew.Up` (0.07 without the flag), `IncDec.Up` (0.03)" + ` |
| ` + "`batches_per_decision`" + ` | ` + "`--batches-per-decision`" + ` | ` + "`sim.Job.Elements`" + ` |
| ` + "`client_cost`" + ` | ` + "`--client-cost`" + ` | ` + "`Prices.Trainer`" + ` |
| ` + "`worker_cost`" + ` | ` + "`--worker-cost`" + ` | ` + "`Prices.Remote`" + ` |
| ` + "`optimize_cost`" + ` | ` + "`--optimize-cost`" + ` | ` + "`IncDec.ByCost`" + ` |
`

// titles explain the families.
var titles = map[string]string{
	"floor": "Floor: enough workers reach the trainer's speed", "inverse": "Inverse: workers are always the bound",
	"diminishing": "Diminishing returns of local workers", "network": "Network: a limit for all remote workers",
	"contention": "Contention on the trainer's host", "dips": "Dips: contention, and single slow numbers of workers",
}

// family returns the summaries of a family in a scenario, in the order of the policies.
func family(r *sim.Report, scenario, name string) []*sim.Summary {
	return slices.DeleteFunc(slices.Clone(r.Summaries), func(s *sim.Summary) bool { return s.Scenario != scenario || s.Family != name })
}

func changed(b *strings.Builder, r *sim.Report) {
	fmt.Fprintf(b, "\n## After a change\n\nThe price of an element %d windows after the change, above the best fixed workers from then on.\n", sim.FollowWindows)
	for _, name := range sim.Families {
		fmt.Fprintf(b, "\n### %s, changed\n\n| change |", titles[name])
		for _, p := range sim.Policies {
			fmt.Fprintf(b, " %s |", p.Name)
		}
		b.WriteString("\n|" + strings.Repeat(" --- |", len(sim.Policies)+1) + "\n")
		for _, change := range sim.AllChanges {
			fmt.Fprintf(b, "| %s |", change.Name)
			for _, s := range family(r, change.Name, name) {
				fmt.Fprintf(b, " %s |", spread(s.Final(), percent))
			}
			b.WriteString("\n")
		}
	}
}

func curves(b *strings.Builder, r *sim.Report) {
	b.WriteString("\n## Published curves\n\nThe times that were published for 1, 2, … remote workers. The price of an element, or its time, in the last window above the best.\n" +
		"The published log of *ResNet on a TPU* ends with 19.6, 18.7, 17.4 and 19.3 s for 10 to 13 workers. Such a dip of one run is no optimum that a policy should find.\n" +
		"So the curve is flat there, at 19.6 s.\n\n| curve | objective |")
	for _, p := range sim.Policies {
		fmt.Fprintf(b, " %s |", p.Name)
	}
	b.WriteString("\n|" + strings.Repeat(" --- |", len(sim.Policies)+2) + "\n")
	for _, objective := range []string{"cost", "time"} {
		for _, curve := range sim.Published {
			fmt.Fprintf(b, "| %s | %s |", curve.Name, objective)
			for _, s := range family(r, sim.Curves+", "+objective, curve.Name) {
				fmt.Fprintf(b, " %s |", spread(s.Final(), percent))
			}
			b.WriteString("\n")
		}
	}
}

// percent formats a share. A share has no bound if the job stands still.
func percent(share float64) string {
	switch {
	case share > 1e6:
		return "stands still"
	case share >= 0.9995:
		return fmt.Sprintf("%.0f %%", 100*share)
	}
	return fmt.Sprintf("%.1f %%", 100*share)
}

// spread formats the median of values, and their interval.
func spread(values []float64, format func(float64) string) string {
	return format(sim.Quantile(values, 0.5)) + " " + interval(values, format)
}

// interval formats the 5th and the 95th percentile of values.
func interval(values []float64, format func(float64) string) string {
	return fmt.Sprintf("(%s to %s)", format(sim.Quantile(values, 0.05)), format(sim.Quantile(values, 0.95)))
}

func hundredths(v float64) string { return fmt.Sprintf("%.2f", v) }
