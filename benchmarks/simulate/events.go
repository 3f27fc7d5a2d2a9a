package main

import (
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"strconv"

	"github.com/pecan-ml/pecan/policies/autoscale"
	"github.com/pecan-ml/pecan/policies/sim"
)

// columns are the columns of the event log. A line is a measurement window of a run and the decision after it. windows, seconds,
// bill and best include the windows in which a change of workers settled. reason is left out of lines that repeat the decision
// before.
var columns = []string{
	"scenario", "family", "policy", "seed", "window", "remote", "local", "windows", "seconds", "bill", "best", "regret",
	"target_remote", "target_local", "state", "converged", "reason",
}

type eventWriter struct{ out *csv.Writer }

func newEventWriter(out io.Writer) eventWriter {
	w := eventWriter{csv.NewWriter(out)}
	// The writer keeps its first error, and end returns it.
	_ = w.out.Write(columns)
	return w
}

func (w eventWriter) write(r sim.Run) {
	number := func(f float64) string { return strconv.FormatFloat(f, 'g', 6, 64) }
	var before autoscale.Decision
	for i, s := range r.Steps {
		d, reason := s.Decision, s.Decision.Reason
		if i > 0 && d.Target == before.Target && d.InTrainer == before.InTrainer && d.State == before.State {
			reason = ""
		}
		before = d
		_ = w.out.Write([]string{
			r.Scenario, r.Family, r.Policy, strconv.FormatUint(r.Seed, 10), strconv.Itoa(i), strconv.Itoa(s.Workers.Remote), strconv.Itoa(s.Workers.Local),
			strconv.Itoa(s.Windows), number(s.Seconds), number(s.Bill), number(s.Best), number(s.Regret), strconv.Itoa(d.Target.Remote), strconv.Itoa(d.Target.Local), d.State,
			strconv.FormatBool(d.Converged), reason,
		})
	}
}

func (w eventWriter) end() error {
	w.out.Flush()
	return w.out.Error()
}

// readEvents calls each for every run of an event log.
func readEvents(in io.Reader, each func(sim.Run)) error {
	reader := csv.NewReader(in)
	reader.FieldsPerRecord, reader.ReuseRecord = len(columns), true
	if _, err := reader.Read(); err != nil {
		return fmt.Errorf("the head of the event log: %w", err)
	}
	var run sim.Run
	flush := func() {
		if len(run.Steps) > 0 {
			each(run)
		}
	}
	for {
		line, err := reader.Read()
		if errors.Is(err, io.EOF) {
			flush()
			return nil
		}
		if err != nil {
			return err
		}
		var p parser
		next := sim.Run{Scenario: line[0], Family: line[1], Policy: line[2], Seed: uint64(p.integer(line[3]))}
		window := p.integer(line[4])
		step := sim.Step{
			Workers: autoscale.Configuration{Remote: p.integer(line[5]), Local: p.integer(line[6])},
			Windows: p.integer(line[7]), Seconds: p.number(line[8]), Bill: p.number(line[9]), Best: p.number(line[10]), Regret: p.number(line[11]),
			Decision: autoscale.Decision{
				Target: autoscale.Configuration{Remote: p.integer(line[12]), Local: p.integer(line[13])}, State: line[14],
				Converged: line[15] == "true", Reason: line[16],
			},
		}
		if window == 0 {
			flush()
			run = next
		}
		if p.err == nil && window != len(run.Steps) {
			p.err = fmt.Errorf("window %d follows %d windows", window, len(run.Steps))
		}
		if p.err != nil {
			at, _ := reader.FieldPos(0)
			return fmt.Errorf("line %d: %w", at, p.err)
		}
		run.Steps = append(run.Steps, step)
	}
}

// parser keeps the first error of the numbers that it reads.
type parser struct{ err error }

func (p *parser) integer(text string) int {
	n, err := strconv.Atoi(text)
	if p.err == nil {
		p.err = err
	}
	return n
}

func (p *parser) number(text string) float64 {
	f, err := strconv.ParseFloat(text, 64)
	if p.err == nil {
		p.err = err
	}
	return f
}
