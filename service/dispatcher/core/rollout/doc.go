// Package rollout decides whether a dataset's steps run in a new order: it measures, tries, adopts and rolls back the order.
//
// One order's life, and the file of each stage:
//
//	measuring    measure.go  metrics show what each step costs; PlanRequest asks the caller for an order
//	planned      plan.go     Planned answers; an order that saves too little ends here (kept)
//	trial        plan.go     one worker runs some elements in both orders; nobody receives them. work.go says what that may cost
//	             decide.go   the worker's answer, or its loss, ends the trial
//	decision     decide.go   OrderDecided is the first durable record: piloted, refused or kept
//	pilot        pilot.go    one stream of an open epoch, or of the next one, runs in the new order, where that can be compared
//	comparison   judge.go    sums the costs of both sides
//	judgement    judge.go    OrderJudged adopts the order or rolls it back
//	spread       spread.go   fresh streams of open epochs get an adopted order, or the registered one after a rollback. Running
//	                         streams leave an order that costs more
//
// decide.go also tries what a wider tolerance would save. explain.go reports the stage and its reason. position.go returns the
// order of an epoch that a position names. rollout.go holds the machine and its Host, which is the core.
//
// Nothing before OrderDecided is durable: a dispatcher that restarts measures and tries again. The order of a stream
// is durable before its first lease, and a stream keeps it while a worker runs the stream. Jobs of one dataset share a
// rollout if policy, tolerance and plan are the same. The package is pure, and it must not read graphs: the caller plans.
package rollout
