// Package rollout takes another order of a dataset's steps from the workers' metrics to production, or back.
//
// One order's life, and the file of each stage:
//
//	measuring    measure.go  metrics show what each step costs; PlanRequest asks the caller for an order
//	planned      plan.go     Planned answers; an order that saves too little ends here (kept)
//	trial        trial.go    one worker runs some elements in both orders; nobody receives them
//	decision     decide.go   OrderDecided is the first durable record: piloted, refused or kept
//	pilot        pilot.go    the next epoch runs one stream in the new order, where that can be compared
//	comparison   compare.go  sums the costs of both sides
//	judgement    judge.go    OrderJudged adopts the order or rolls it back
//
// explain.go reports the stage and its reason. position.go returns the order of an epoch that a position names. rollout.go
// holds the machine and its Host, which is the core.
//
// Nothing before OrderDecided is durable: a dispatcher that restarts measures and tries again. The order of an epoch is
// durable from the record that opens it, and open epochs keep theirs. Jobs of one dataset share a rollout if policy,
// tolerance and plan are the same. The package is pure, and it must not read graphs: the caller plans.
package rollout
