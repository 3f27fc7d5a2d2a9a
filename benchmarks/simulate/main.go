// Command simulate compares the policies for workers on random jobs. It prints a table: the regret of the last
// configuration, the windows to converge, the bill with the search, and the changes. With --decisions it also
// writes every decision as a line of a CSV file:
//
//	simulate --seeds 200 --decisions decisions.csv
package main

import (
	"encoding/csv"
	"fmt"
	"os"
	"strconv"

	"github.com/spf13/pflag"

	"github.com/pecan-ml/pecan/policies/sim"
)

func main() {
	seeds := pflag.Int("seeds", 200, "simulated jobs of each family and policy")
	windows := pflag.Int("windows", 80, "measurement windows of each job")
	decisions := pflag.String("decisions", "", "CSV file for the decisions")
	pflag.Parse()
	if err := run(*seeds, *windows, *decisions); err != nil {
		fmt.Fprintln(os.Stderr, "simulate:", err)
		os.Exit(1)
	}
}

func run(seeds, windows int, decisions string) error {
	if seeds < 1 || windows < 1 {
		return fmt.Errorf("there are %d seeds and %d windows; both are at least 1", seeds, windows)
	}
	if decisions == "" {
		fmt.Print(sim.Table(sim.Compare(seeds, windows, nil)))
		return nil
	}
	file, err := os.Create(decisions)
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }()
	out := csv.NewWriter(file)
	// The writer keeps its first error, and Error returns it.
	_ = out.Write([]string{"family", "policy", "seed", "window", "remote", "local", "regret", "target_remote", "target_local", "state", "reason"})
	fmt.Print(sim.Table(sim.Compare(seeds, windows, func(r sim.Run) {
		for i, s := range r.Steps {
			t := s.Decision.Target
			_ = out.Write([]string{
				r.Family, r.Policy, strconv.FormatUint(r.Seed, 10), strconv.Itoa(i), strconv.Itoa(s.Workers.Remote), strconv.Itoa(s.Workers.Local),
				strconv.FormatFloat(s.Regret, 'f', 4, 64), strconv.Itoa(t.Remote), strconv.Itoa(t.Local), s.Decision.State, s.Decision.Reason,
			})
		}
	})))
	out.Flush()
	if err := out.Error(); err != nil {
		return err
	}
	return file.Close()
}
