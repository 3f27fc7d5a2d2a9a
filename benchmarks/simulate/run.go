package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"

	"github.com/pecan-ml/pecan/policies/sim"
)

func run(o options, out io.Writer) error {
	if o.seeds < 1 || o.windows < 1 {
		return fmt.Errorf("there are %d seeds and %d windows; both are at least 1", o.seeds, o.windows)
	}
	policies, err := o.switches.policies()
	if err != nil {
		return err
	}
	if o.replay != "" {
		return replay(o.replay, policies, out)
	}
	if o.page != "" && o.switches.given() {
		return errors.New("--page compares the policies with their published constants: leave the predecessors' switches out")
	}
	from := o.from
	if from == "" {
		scenarios := sim.StableScenarios(o.windows)
		if o.page != "" {
			scenarios = slices.Concat(scenarios, sim.ChangeScenarios(), sim.CurveScenarios())
		}
		if err := simulate(o, o.switches.adjust(scenarios), policies); err != nil {
			return err
		}
		from = o.log
	}
	// The table, the page and the picture have no other source than the event log.
	report, err := readReport(from)
	if err != nil {
		return err
	}
	fmt.Fprint(out, report.Table(sim.Stable))
	if o.page == "" {
		return nil
	}
	for name, text := range map[string]string{"placement.md": page(report), "placement.svg": plot(report)} {
		if err := os.WriteFile(filepath.Join(o.page, name), []byte(text), 0o644); err != nil {
			return err
		}
	}
	return nil
}

func readReport(name string) (*sim.Report, error) {
	file, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	report := &sim.Report{}
	if err := readEvents(file, report.Add); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	if len(report.Summaries) == 0 {
		return nil, fmt.Errorf("%s: no decisions", name)
	}
	return report, nil
}

// simulate runs jobs and writes the event log.
func simulate(o options, scenarios []sim.Scenario, policies []sim.Named) (err error) {
	if err := os.MkdirAll(filepath.Dir(o.log), 0o755); err != nil {
		return err
	}
	file, err := os.Create(o.log)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	events := newEventWriter(file)
	sim.Compare(scenarios, policies, o.seeds, events.write)
	return events.end()
}
