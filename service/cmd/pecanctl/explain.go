package main

import (
	"fmt"
	"io"
	"math"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
)

const (
	// widest is how far lines go, narrowest how narrow a terminal is taken for.
	widest, narrowest = 120, 40
	// longestName is what is shown of a step's name at most; JSON has the whole of it.
	longestName, shortestName = 40, 12
)

// columns is how wide the text for a writer may be.
func columns(out io.Writer) int {
	file, ok := out.(*os.File)
	if !ok {
		return widest
	}
	size, err := unix.IoctlGetWinsize(int(file.Fd()), unix.TIOCGWINSZ)
	if err != nil || size.Col == 0 {
		return widest
	}
	return max(narrowest, min(widest, int(size.Col)))
}

// showExplain shows why the steps of a job run in the order in which they do.
func showExplain(out io.Writer, e *pecanv1.ExplainResponse, width int) {
	order := "off"
	if o := e.GetOrder(); o != pecanv1.Order_ORDER_UNSPECIFIED && o != pecanv1.Order_ORDER_OFF {
		order = fmt.Sprintf("%s, tolerance %s", word(o.String(), "ORDER_"), word(e.GetTolerance().String(), "ORDER_TOLERANCE_"))
	}
	facts := [][]string{{"job", e.GetJobId()}, {"order", order}, {"state", e.GetState()}, {"why", e.GetWhy()}}
	facts = append(facts, gains(e)...)
	if p := e.GetProduction(); p.GetRegisteredS() > 0 {
		against := map[bool]string{true: "in streams beside it", false: "in epochs before it"}[p.GetSameEpochs()]
		facts = append(facts, []string{"production", fmt.Sprintf("%s for an element in the planned order, %s in the registered one %s, over %d and %d elements: %s",
			span(p.GetOrderedS()), span(p.GetRegisteredS()), against, p.GetOrderedElements(), p.GetRegisteredElements(), saving(p.GetRegisteredS(), p.GetOrderedS()))})
	}
	grid(out, facts, width)
	if len(e.GetSteps()) > 0 {
		showSteps(out, e.GetSteps(), width)
	}
	showDifferences(out, e.GetTrial().GetComponents(), width)
}

// gains are what the planned order saves, as predicted and as measured.
func gains(e *pecanv1.ExplainResponse) (facts [][]string) {
	if before, after := e.GetPredictedBeforeS(), e.GetPredictedAfterS(); before > 0 {
		facts = append(facts, []string{"predicted", fmt.Sprintf("%s of CPU for an element of the source, %s in the planned order: %s",
			span(before), span(after), saving(before, after))})
	}
	t := e.GetTrial()
	if t == nil {
		return facts
	}
	if t.GetOriginalS() > 0 {
		facts = append(facts, []string{"measured", fmt.Sprintf("%s of CPU for an element, %s in the planned order, over %d elements: %s. Saved are %s to %s (95 %% confidence)",
			span(t.GetOriginalS()), span(t.GetOrderedS()), t.GetElements(), saving(t.GetOriginalS(), t.GetOrderedS()), span(t.GetSavedLowS()), span(t.GetSavedHighS()))})
	}
	facts = append(facts, []string{"trial", fmt.Sprintf("took %s of CPU", span(t.GetCpuS()))})
	if why := t.GetRefused(); !strings.Contains(e.GetWhy(), why) {
		facts = append(facts, []string{"refused", why})
	}
	return facts
}

func saving(before, after float64) string {
	share := 100 * (before - after) / before
	if share < 0 {
		return fmt.Sprintf("%.1f %% more", -share)
	}
	return fmt.Sprintf("%.1f %% less", share)
}

func showSteps(out io.Writer, steps []*pecanv1.ExplainedStep, width int) {
	places := placesOf(steps)
	moved := movedOf(places)
	planned := make([]int, len(steps))
	for i, place := range places {
		planned[place] = i
	}
	orders := [][]string{{"", "REGISTERED ORDER", "PLANNED ORDER"}}
	figures := [][]string{{"", "STEP", "ELEMENTS", "IN EACH", "OUT EACH", "FACTOR", "CPU EACH", "WHAT IT DOES"}}
	reasons := [][]string{{"", "STEP", "WHY IT STANDS THERE"}}
	// Beside a name there is room for another and the note that it was moved, and beside the figures for a name and some words.
	half, name := min(longestName, (width-16)/2), max(shortestName, min(longestName, width-80))
	for i, s := range steps {
		here := clip(stepName(steps[planned[i]]), half)
		if moved[planned[i]] {
			here += fmt.Sprintf(" (was %d)", planned[i]+1)
		}
		number := fmt.Sprint(i + 1)
		orders = append(orders, []string{number, clip(stepName(s), half), here})
		row := append([]string{number, clip(called(s), name)}, figuresOf(steps, i)...)
		figures = append(figures, append(row, orElse(strings.Join(s.GetTraits(), "; "), "-")))
		reasons = append(reasons, []string{number, clip(called(s), name), orElse(s.GetReason(), "-")})
	}
	for _, rows := range [][][]string{orders, figures, reasons} {
		fmt.Fprintln(out)
		grid(out, rows, width)
	}
}

// figuresOf are what a step did in the registered order: a filter and a batch are given other elements than they give.
func figuresOf(steps []*pecanv1.ExplainedStep, i int) []string {
	f := steps[i].GetFigures()
	if f.GetElements() == 0 {
		return []string{"-", "-", "-", "-", "-"}
	}
	given := f.GetElements()
	if i > 0 && steps[i-1].GetFigures().GetElements() > 0 {
		given = steps[i-1].GetFigures().GetElements()
	}
	factor := "-"
	if f.GetBytesIn() > 0 {
		factor = fmt.Sprintf("%.3g", float64(f.GetBytesOut())/float64(f.GetBytesIn()))
	}
	return []string{
		fmt.Sprint(f.GetElements()), size(int64(f.GetBytesIn() / given)), size(int64(f.GetBytesOut() / f.GetElements())), factor,
		span(f.GetSelfCpuS() / float64(given)),
	}
}

// called is what people know a step by.
func called(s *pecanv1.ExplainedStep) string { return orElse(s.GetLabel(), s.GetNode()) }

func stepName(s *pecanv1.ExplainedStep) string {
	if s.GetOp() == "" || strings.HasPrefix(called(s), s.GetOp()) {
		return called(s)
	}
	return fmt.Sprintf("%s (%s)", called(s), s.GetOp())
}

// placesOf are the steps' places in the planned order, or those that they have where none was planned.
func placesOf(steps []*pecanv1.ExplainedStep) []int {
	places, as := make([]int, len(steps)), make([]int, len(steps))
	for i, s := range steps {
		places[i], as[i] = int(s.GetPlace()), i
	}
	sorted := slices.Clone(places)
	if slices.Sort(sorted); !slices.Equal(sorted, as) {
		return as
	}
	return places
}

// movedOf finds the fewest steps that have to be moved to give the planned order; of two that only change places, the later one.
func movedOf(places []int) []bool {
	moved := make([]bool, len(places))
	// length is that of the longest row of steps that end here and follow each other in both orders.
	length, before := make([]int, len(places)), make([]int, len(places))
	last := -1
	for i, place := range places {
		moved[i], length[i], before[i] = true, 1, -1
		for j := range i {
			if places[j] < place && length[j]+1 > length[i] {
				length[i], before[i] = length[j]+1, j
			}
		}
		if last < 0 || length[i] > length[last] {
			last = i
		}
	}
	for ; last >= 0; last = before[last] {
		moved[last] = false
	}
	return moved
}

func showDifferences(out io.Writer, components []*pecanv1.OrderDifference, width int) {
	if len(components) == 0 {
		return
	}
	rows := [][]string{{"COMPONENT", "WORST DIFFERENCE", "BOUND", "RANGE IN THE SAMPLE", "VERDICT"}}
	for _, c := range components {
		bound, verdict := fmt.Sprintf("%.4g", c.GetBound()), "within its bound"
		switch {
		case c.GetBound() < 0:
			bound, verdict = "any", "recorded"
		case !(c.GetMaxDifference() <= c.GetBound()):
			verdict = "beyond its bound"
		}
		rows = append(rows, []string{fmt.Sprint(c.GetComponent()), fmt.Sprintf("%.4g", c.GetMaxDifference()), bound, fmt.Sprintf("%.4g", c.GetRange()), verdict})
	}
	fmt.Fprintln(out)
	grid(out, rows, width)
}

// span is a time that may be short.
func span(s float64) string {
	sign := ""
	if s < 0 {
		sign, s = "-", -s
	}
	switch {
	case math.IsNaN(s) || math.IsInf(s, 0):
		return "-"
	case s == 0:
		return "0 s"
	case s < 1e-3:
		return fmt.Sprintf("%s%.3g µs", sign, s*1e6)
	case s < 1:
		return fmt.Sprintf("%s%.3g ms", sign, s*1e3)
	case s < 1e3:
		return fmt.Sprintf("%s%.3g s", sign, s)
	}
	return fmt.Sprintf("%s%.0f s", sign, s)
}
