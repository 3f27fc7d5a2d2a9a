package main

import (
	"fmt"
	"os"

	"github.com/spf13/pflag"
)

type options struct {
	seeds, windows          int
	log, from, page, replay string
	switches                switches
}

func main() {
	o := options{}
	pflag.IntVar(&o.seeds, "seeds", 200, "simulated jobs of each scenario and policy")
	pflag.IntVar(&o.windows, "windows", 80, "measurement windows of each job that does not change")
	pflag.StringVar(&o.log, "log", "build/simulate/decisions.csv", "event log to write, a CSV file with a line for each decision")
	pflag.StringVar(&o.from, "from", "", "event log to read instead of simulating")
	pflag.StringVar(&o.page, "page", "", "directory for placement.md and placement.svg; empty: only print a table")
	pflag.StringVar(&o.replay, "replay", "", "file of a dispatcher's --decisions-log, to show what each policy decides from its measurements")
	o.switches.register(pflag.CommandLine)
	pflag.Parse()
	if err := run(o, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "simulate:", err)
		os.Exit(1)
	}
}
