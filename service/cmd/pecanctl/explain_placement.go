package main

import (
	"fmt"
	"io"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
)

// perCost is the number of elements whose cost the table of candidates shows.
const perCost = 1000

// showPlacement prints the decision on the workers of a job, and the configurations that were compared.
func showPlacement(out io.Writer, e *pecanv1.ExplainResponse, width int) {
	fmt.Fprintln(out)
	grid(out, placementFacts(e), width)
	if len(e.GetPlacement().GetCandidates()) > 0 && e.GetPlacementOptions() != nil {
		fmt.Fprintln(out)
		grid(out, candidateRows(e), width)
	}
}

func placementFacts(e *pecanv1.ExplainResponse) [][]string {
	fleet, o, p := e.GetFleet(), e.GetPlacementOptions(), e.GetPlacement()
	if o.GetObjective() == "" {
		text := "the job has no objective, so all workers serve it"
		if fleet != nil {
			text += ": now " + workersOf(fleet.Remote, fleet.Local)
		}
		return [][]string{{"placement", text}}
	}
	state := p.GetState()
	if p.GetConverged() {
		state += ": the search has ended"
	}
	return [][]string{
		{"placement", fmt.Sprintf("%s wanted, %s running", workersOf(p.GetRemote(), p.GetLocal()), workersOf(fleet.GetRemote(), fleet.GetLocal()))},
		{"objective", objectiveOf(o)},
		{"state", state},
		{"why", p.GetWhy()},
		{"prices", pricesOf(fleet)},
		{"search", searchOf(p, fleet.GetPrices())},
	}
}

func workersOf(remote, local uint32) string {
	return fmt.Sprintf("%d remote and %d local workers", remote, local)
}

func objectiveOf(o *pecanv1.PlacementOptions) string {
	text := o.GetObjective()
	if o.GetBudgetPerHour() > 0 {
		text += fmt.Sprintf(" of %s per hour", money(o.GetBudgetPerHour()))
	}
	return fmt.Sprintf("%s, with %s remote and %s local workers", text, limitOf(o.GetMinRemote(), o.GetMaxRemote()), limitOf(o.GetMinLocal(), o.GetMaxLocal()))
}

// limitOf formats the bounds of a number of workers. A maximum of 0 is none, and a negative one allows no worker.
func limitOf(least, most int32) string {
	switch {
	case most < 0:
		return "no"
	case most == 0 && least <= 0:
		return "any number of"
	case most == 0:
		return fmt.Sprintf("at least %d", least)
	case least <= 0:
		return fmt.Sprintf("at most %d", most)
	}
	return fmt.Sprintf("%d to %d", least, most)
}

func pricesOf(fleet *pecanv1.JobFleet) string {
	p := fleet.GetPrices()
	switch {
	case fleet.GetPricesProblem() != "":
		return "none: " + fleet.GetPricesProblem()
	case p == nil:
		return "none: the dispatcher has no table of prices"
	}
	return fmt.Sprintf("in %s per hour: %s for a trainer, %s for a remote worker, %s for a local worker, %s for the job with %d trainers. The costs below are of %d elements",
		orElse(p.GetCurrency(), "money"), money(p.GetTrainer()), money(p.GetRemote()), money(p.GetLocal()), money(p.GetJob()), fleet.GetTrainers(), perCost)
}

func searchOf(p *pecanv1.Placement, prices *pecanv1.JobPrices) string {
	if p.GetSearchWindows() == 0 {
		return "no measurement window yet"
	}
	lost := span(p.GetSearchLostS())
	if prices != nil {
		lost += " or " + priced(p.GetSearchBill(), prices)
	}
	return fmt.Sprintf("windows measured: %d; they cost %s more than with the best known workers", p.GetSearchWindows(), lost)
}

func candidateRows(e *pecanv1.ExplainResponse) [][]string {
	p, prices := e.GetPlacement(), e.GetFleet().GetPrices()
	head := []string{"WORKERS", "WINDOWS", "PREDICTED", "MEASURED"}
	if prices != nil {
		head = append(head, "PREDICTED COST", "MEASURED COST")
	}
	rows := [][]string{append(head, "SCORE")}
	for _, c := range p.GetCandidates() {
		name := fmt.Sprintf("%d remote, %d local", c.GetRemote(), c.GetLocal())
		if c.GetRemote() == p.GetRemote() && c.GetLocal() == p.GetLocal() {
			name += " (wanted)"
		}
		row := []string{name, fmt.Sprint(c.GetWindows()), unknownOr(c.GetPredictedS(), span), unknownOr(c.GetMeasuredS(), span)}
		if prices != nil {
			cost := func(s float64) string { return priced(costOf(s, c, e.GetFleet()), prices) }
			row = append(row, unknownOr(c.GetPredictedS(), cost), unknownOr(c.GetMeasuredS(), cost))
		}
		rows = append(rows, append(row, fmt.Sprintf("%.4g", c.GetScore())))
	}
	return rows
}

// costOf returns the price of perCost elements with a candidate's workers, if each trainer takes one every s seconds.
func costOf(s float64, c *pecanv1.PlacementCandidate, fleet *pecanv1.JobFleet) float64 {
	p, trainers := fleet.GetPrices(), float64(max(fleet.GetTrainers(), 1))
	perHour := p.GetTrainer()*trainers + p.GetRemote()*float64(c.GetRemote()) + p.GetLocal()*float64(c.GetLocal())
	return perCost * s * perHour / trainers / 3600
}

// unknownOr formats a value; 0 is unknown.
func unknownOr(value float64, format func(float64) string) string {
	if value == 0 {
		return "-"
	}
	return format(value)
}

func priced(value float64, p *pecanv1.JobPrices) string {
	return money(value) + " " + orElse(p.GetCurrency(), "money")
}

// money formats an amount with three digits, and large ones with all.
func money(value float64) string {
	if value >= 999.5 {
		return fmt.Sprintf("%.0f", value)
	}
	return fmt.Sprintf("%.3g", value)
}
