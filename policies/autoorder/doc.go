// Package autoorder decides in which order the steps of a dataset run. Steps that shrink elements go early and steps
// that enlarge them go late, if the values of elements stay the same.
//
// There are two policies. Paper is the published algorithm, for comparison. Cost minimises the predicted CPU time. A
// policy is a pure function. Its input is a Pipeline: the measurements of each step, its effect on the components of an
// element, and the ordering constraints between steps. Its output is a Plan: an order with reasons and predictions.
// Both policies order each section by itself: the steps between two fixed steps. The dispatcher tries a plan before it
// adopts it.
//
// testdata has scripts of pipelines and the expected plans. Files:
//
//   - pipeline.go has the input and the output.
//   - paper.go has the policy Paper.
//   - cost.go has the policy Cost and its cost model.
//   - search.go searches for the cheapest order.
//   - fit.go fits the cost model to measurements in two orders.
//   - predict.go predicts the cost of a given order.
//
// The package imports no other package of Pecan, reads no clock and keeps no state, so that a simulator can replay
// recorded measurements. docs/design/0010-autoorder.md has the reasons.
//
// Do not decide here whether an order is safe: the ordering constraints in the input say which steps may swap.
package autoorder
