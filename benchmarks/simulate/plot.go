package main

import (
	"fmt"

	"github.com/pecan-ml/pecan/policies/sim"
)

const (
	plotWidth               = 1080.0
	panelWidth, panelHeight = 270.0, 150.0
	panelLeft, panelTop     = 70.0, 100.0
	panelStepX, panelStepY  = 345.0, 215.0
	rowsTop                 = 590.0
	rowHeight               = 24.0
	// lowest and highest are the ends of the axis of prices.
	lowest, highest = 0.003, 3.0
)

// look is how the line of a policy is drawn.
type look struct{ colour, dash, width string }

// looks has the colours of a palette that colour-blind people can tell apart. Versions of one policy differ in dashes.
var looks = map[string]look{
	"search": {"#00695c", "", "3"}, "pecan-paper": {"#d55e00", "", "1.5"}, "pecan-code": {"#d55e00", "5 3", "1.5"},
	"cachew-paper": {"#0072b2", "", "1.5"}, "cachew-code": {"#0072b2", "5 3", "1.5"}, "hpa": {"#cc79a7", "", "1.5"},
	"fastflow": {"#777", "2 3", "1.5"}, "collocated": {"#777", "8 3 2 3", "1.5"},
}

// stroke returns the attributes of a policy's lines.
func stroke(policy string) string {
	l, known := looks[policy]
	if !known {
		l = look{"#222", "1 2", "1.5"}
	}
	style := fmt.Sprintf(`fill="none" stroke="%s" stroke-width="%s" stroke-linejoin="round"`, l.colour, l.width)
	if l.dash != "" {
		style += fmt.Sprintf(` stroke-dasharray="%s"`, l.dash)
	}
	return style
}

// plot draws a report: the price over time for each family, and a summary over all families.
func plot(r *sim.Report) string {
	policies := policiesOf(r)
	d := newDrawing(plotWidth, rowsTop+rowHeight*float64(len(policies))+80, "How many workers: the policies compared")
	d.text(20, 28, "start", `font-size="18" font-weight="bold"`, "Price of an element above the best fixed workers")
	d.text(20, 48, "start", `fill="#555"`, fmt.Sprintf("median of %d simulated jobs in each measurement window; band: 5th to 95th percentile of search", len(r.Summaries[0].Bills)))
	for i, name := range policies {
		x := 20 + float64(i)*130
		d.line(x, 68, x+28, 68, stroke(name))
		d.text(x+34, 72, "start", "", name)
	}
	for i, name := range sim.Families {
		panel(d, r, name, panelLeft+panelStepX*float64(i%3), panelTop+panelStepY*float64(i/3))
	}
	d.text(20, rowsTop-58, "start", `font-size="18" font-weight="bold"`, "All families together")
	d.text(20, rowsTop-38, "start", `fill="#555"`, "dot and number: median; line: 5th to 95th percentile")
	for i, c := range summaryColumns {
		column(d, r, policies, c, 120+245*float64(i))
	}
	for i, name := range policies {
		y := rowsTop + rowHeight*(float64(i)+0.7)
		d.text(105, y+4, "end", weight(name), name)
	}
	return d.String()
}

// policiesOf returns the policies of the stable scenario in their order.
func policiesOf(r *sim.Report) (names []string) {
	for _, s := range family(r, sim.Stable, r.Summaries[0].Family) {
		names = append(names, s.Policy)
	}
	return names
}

func weight(policy string) string {
	if policy == sim.Default {
		return `font-weight="bold"`
	}
	return ""
}

const grid = `stroke="#ddd"`

// panel draws the price over time in a family.
func panel(d *drawing, r *sim.Report, name string, x, y float64) {
	summaries := family(r, sim.Stable, name)
	if len(summaries) == 0 {
		return
	}
	windows := float64(len(summaries[0].Regrets))
	across := axis{low: 1, high: max(windows, 2), from: x, to: x + panelWidth}
	up := axis{low: lowest, high: highest, from: y + panelHeight, to: y, logarithmic: true}
	d.text(x, y-8, "start", `font-weight="bold"`, name)
	for _, tick := range []float64{0.003, 0.01, 0.03, 0.1, 0.3, 1, 3} {
		d.line(x, up.at(tick), x+panelWidth, up.at(tick), grid)
		label := share(tick)
		switch tick {
		case lowest:
			label = "≤ " + label
		case highest:
			label = "≥ " + label
		}
		d.text(x-6, up.at(tick)+4, "end", `font-size="11" fill="#555"`, label)
	}
	for window := 20.0; window <= windows; window += 20 {
		d.line(across.at(window), y, across.at(window), y+panelHeight, grid)
		d.text(across.at(window), y+panelHeight+15, "middle", `font-size="11" fill="#555"`, fmt.Sprintf("%.0f", window))
	}
	d.text(x, y+panelHeight+15, "start", `font-size="11" fill="#555"`, "1")
	line := func(s *sim.Summary, q float64) (points [][2]float64) {
		for i, values := range s.Regrets {
			points = append(points, [2]float64{across.at(float64(i + 1)), up.at(sim.Quantile(values, q))})
		}
		return points
	}
	for _, s := range summaries {
		if s.Policy == sim.Default {
			band := line(s, 0.95)
			low := line(s, 0.05)
			for i := len(low) - 1; i >= 0; i-- {
				band = append(band, low[i])
			}
			d.path(band, true, fmt.Sprintf(`fill="%s" fill-opacity="0.13"`, looks[sim.Default].colour))
		}
	}
	// The default policy is drawn last, above the others.
	for _, own := range []bool{false, true} {
		for _, s := range summaries {
			if (s.Policy == sim.Default) == own {
				d.path(line(s, 0.5), false, stroke(s.Policy))
			}
		}
	}
}

// summaryColumn is a quantity that is summed up over all families.
type summaryColumn struct {
	title  string
	values func(*sim.Summary) []float64
	axis   axis
	ticks  []float64
	// tick formats the ticks, format the median.
	tick, format func(float64) string
}

var summaryColumns = []summaryColumn{
	{"price in the last window", (*sim.Summary).Final, axis{low: lowest, high: highest, logarithmic: true}, []float64{0.003, 0.03, 0.3, 3}, share, percent},
	{"windows to converge", func(s *sim.Summary) []float64 { return s.Converged }, axis{low: 0, high: 80}, []float64{0, 20, 40, 60, 80}, whole, whole},
	{
		"bill with the search, × best", func(s *sim.Summary) []float64 { return s.Bills }, axis{low: 1, high: 10, logarithmic: true}, []float64{1, 2, 5, 10}, whole,
		hundredths,
	},
	{"changes in the last 50 windows", func(s *sim.Summary) []float64 { return s.Changes }, axis{low: 0, high: 50}, []float64{0, 10, 20, 30, 40, 50}, whole, whole},
}

func whole(v float64) string { return fmt.Sprintf("%.0f", v) }
func share(v float64) string { return fmt.Sprintf("%.3g %%", 100*v) }

// column draws the median and the interval of a quantity for each policy.
func column(d *drawing, r *sim.Report, policies []string, c summaryColumn, x float64) {
	a := c.axis
	a.from, a.to = x, x+160
	bottom := rowsTop + rowHeight*float64(len(policies)) + 8
	d.text(x, rowsTop-10, "start", `font-weight="bold"`, c.title)
	for _, tick := range c.ticks {
		d.line(a.at(tick), rowsTop, a.at(tick), bottom, grid)
		d.text(a.at(tick), bottom+15, "middle", `font-size="11" fill="#555"`, c.tick(tick))
	}
	for i, name := range policies {
		var values []float64
		for _, s := range r.Summaries {
			if s.Scenario == sim.Stable && s.Policy == name {
				values = append(values, c.values(s)...)
			}
		}
		y := rowsTop + rowHeight*(float64(i)+0.7)
		low, middle, high := sim.Quantile(values, 0.05), sim.Quantile(values, 0.5), sim.Quantile(values, 0.95)
		d.line(a.at(low), y, a.at(high), y, stroke(name))
		d.circle(a.at(middle), y, 4.5, fmt.Sprintf(`fill="%s"`, looks[name].colour))
		d.text(x+168, y+4, "start", `font-size="11" `+weight(name), c.format(middle))
	}
}
