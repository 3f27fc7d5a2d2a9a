// Command simulate compares the policies for workers on random jobs. It writes every decision to an event log, and from
// the log a table and, with --page, a page with a picture:
//
//	simulate --seeds 200 --log build/simulate/decisions.csv --page docs/benchmarks
//	simulate --from build/simulate/decisions.csv --page docs/benchmarks
//	simulate --scaling-policy 3 --scaling-threshold-up 0.07
//	simulate --replay decisions.jsonl
//
// Files: main.go has the flags, run.go runs jobs, switches.go has the switches of Pecan's predecessors, events.go the event
// log, page.go and marks.go the page, plot.go and svg.go the picture, replay.go the replay of a dispatcher's decisions.
package main
