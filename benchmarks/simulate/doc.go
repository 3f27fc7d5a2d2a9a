// Command simulate compares the policies for workers on random jobs. It writes every decision to an event log, and from
// the log a table and, with --page, a page with a picture:
//
//	simulate --seeds 200 --log build/simulate/decisions.csv --page docs/benchmarks
//	simulate --from build/simulate/decisions.csv --page docs/benchmarks
//	simulate --scaling-policy 3 --scaling-threshold-up 0.07
//	simulate --replay decisions.jsonl
//
// main.go has the flags. run.go runs jobs. switches.go has the switches of Pecan's predecessors. events.go writes the event
// log. page.go and marks.go write the page. plot.go and svg.go draw the diagram. replay.go replays a dispatcher's decisions.
package main
