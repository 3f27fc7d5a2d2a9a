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
	// widest and narrowest bound the width of lines, whatever the terminal's width is.
	widest, narrowest = 120, 40
	// longestName is the most columns of a step's name. shortestName is the same in a narrow terminal. JSON has the whole
	// name.
	longestName, shortestName = 40, 12
)

// columns returns the width of lines for a writer.
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

// showExplain prints the order of a job's steps, its workers, the steps that may be cached, and the reasons.
func showExplain(out io.Writer, e *pecanv1.ExplainResponse, width int) {
	order := "off"
	if o := e.GetOrder(); o != pecanv1.Order_ORDER_UNSPECIFIED && o != pecanv1.Order_ORDER_OFF {
		order = fmt.Sprintf("%s, tolerance %s", pecanv1.Word(o, "ORDER_"), pecanv1.Word(e.GetTolerance(), "ORDER_TOLERANCE_"))
	}
	facts := [][]string{{"job", e.GetJobId()}, {"order", order}, {"state", e.GetState()}, {"why", e.GetWhy()}}
	facts = append(facts, gains(e)...)
	if p := e.GetProduction(); p.GetRegisteredS() > 0 {
		against := map[bool]string{true: "in other streams of the same epochs", false: "in earlier epochs"}[p.GetSameEpochs()]
		facts = append(facts, []string{"production", fmt.Sprintf("%s for an element in the planned order (%d elements), %s in the registered one (%d elements) %s: %s",
			span(p.GetOrderedS()), p.GetOrderedElements(), span(p.GetRegisteredS()), p.GetRegisteredElements(), against, saving(p.GetRegisteredS(), p.GetOrderedS()))})
	}
	if advice := e.GetOrderAdvice(); advice != "" {
		facts = append(facts, []string{"advice", advice})
	}
	grid(out, facts, width)
	if len(e.GetSteps()) > 0 {
		showSteps(out, e.GetSteps(), width)
	}
	showDifferences(out, e.GetTrial().GetComponents(), width)
	showPlacement(out, e, width)
	showCache(out, e, width)
}

// gains returns rows with the predicted and the measured saving of the planned order.
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
		facts = append(facts, []string{"measured", fmt.Sprintf("%s of CPU for an element, %s in the planned order, over %d elements: %s. The saving is %s to %s (95 %% confidence)",
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
	positions := positionsOf(steps)
	moved := movedOf(positions)
	planned := make([]int, len(steps))
	for i, position := range positions {
		planned[position] = i
	}
	orders := [][]string{{"", "REGISTERED ORDER", "PLANNED ORDER"}}
	measured := [][]string{{"", "STEP", "ELEMENTS", "IN EACH", "OUT EACH", "FACTOR", "CPU EACH", "WHAT IT DOES"}}
	reasons := [][]string{{"", "STEP", "WHY IT IS THERE"}}
	// A row of the orders has two names and the note of a move. The other tables have one name and numbers in a row.
	half, name := min(longestName, (width-16)/2), max(shortestName, min(longestName, width-80))
	for i, s := range steps {
		here := clip(stepName(steps[planned[i]]), half)
		if moved[planned[i]] {
			here += fmt.Sprintf(" (was %d)", planned[i]+1)
		}
		number := fmt.Sprint(i + 1)
		orders = append(orders, []string{number, clip(stepName(s), half), here})
		row := append([]string{number, clip(labelOf(s), name)}, measurementsOf(steps, i)...)
		measured = append(measured, append(row, orElse(strings.Join(s.GetTraits(), "; "), "-")))
		reasons = append(reasons, []string{number, clip(labelOf(s), name), orElse(s.GetReason(), "-")})
	}
	for _, rows := range [][][]string{orders, measured, reasons} {
		fmt.Fprintln(out)
		grid(out, rows, width)
	}
}

// measurementsOf formats the measurements of a step in the registered order. The number of input elements is the number of output
// elements of the step before: filters and batches change it. The step before the first one of a function is not its input.
func measurementsOf(steps []*pecanv1.ExplainedStep, i int) []string {
	f := steps[i].GetFigures()
	if f.GetElements() == 0 {
		return []string{"-", "-", "-", "-", "-"}
	}
	given := f.GetElements()
	if i > 0 && steps[i-1].GetInside() == steps[i].GetInside() && steps[i-1].GetFigures().GetElements() > 0 {
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

// labelOf returns the author's name for a step, or its name in the graph.
func labelOf(s *pecanv1.ExplainedStep) string { return orElse(s.GetLabel(), s.GetNode()) }

func stepName(s *pecanv1.ExplainedStep) string {
	if s.GetOp() == "" || strings.HasPrefix(labelOf(s), s.GetOp()) {
		return labelOf(s)
	}
	return fmt.Sprintf("%s (%s)", labelOf(s), s.GetOp())
}

// positionsOf returns the steps' positions in the planned order, or in the registered order if there is no plan.
func positionsOf(steps []*pecanv1.ExplainedStep) []int {
	positions, registered := make([]int, len(steps)), make([]int, len(steps))
	for i, s := range steps {
		positions[i], registered[i] = int(s.GetPlace()), i
	}
	sorted := slices.Clone(positions)
	if slices.Sort(sorted); !slices.Equal(sorted, registered) {
		return registered
	}
	return positions
}

// movedOf returns for each step whether it moves, with as few moves as possible. If two steps are swapped, the later one
// moves. The steps that stay are a longest increasing subsequence of the positions.
func movedOf(positions []int) []bool {
	moved := make([]bool, len(positions))
	// length is the length of the longest increasing subsequence that ends at a step. before is the step before it there.
	length, before := make([]int, len(positions)), make([]int, len(positions))
	last := -1
	for i, position := range positions {
		moved[i], length[i], before[i] = true, 1, -1
		for j := range i {
			if positions[j] < position && length[j]+1 > length[i] {
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
	rows := [][]string{{"COMPONENT", "MAX DIFFERENCE", "BOUND", "RANGE IN THE SAMPLE", "VERDICT"}}
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

// span formats a time in seconds with a suitable unit.
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
