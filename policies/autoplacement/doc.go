// Package autoplacement decides how many workers of a job run on the trainers' hosts and how many on other hosts. Search is
// the default. It predicts the element time of every configuration from measured demand and capacity. It jumps to the best
// one, and stays there until a measurement contradicts the prediction.
//
// Paper and IncDec are the published policies, for comparison: Paper is the algorithm of the paper, and IncDec is the
// algorithm of the published code. Neither policy applies Search's guards.
//
// Files:
//
//   - paper.go and incdec.go have the published policies.
//   - search.go has the state machine of Search, and model.go has its predictions.
//   - plan.go begins a search for another plan.
//   - host.go has the load of the trainers' hosts.
//   - compare.go has the sequential test between two configurations.
//   - change.go detects changes.
//   - cost.go sums the cost of searches.
//
// Policies are deterministic state machines. Package autoscale has their inputs and outputs. The
// package reads no clock and draws no random numbers. docs/design/0013-autoscaling.md has the reasons.
//
// Do not iterate over a map where the order shows in a decision, and do not let a published policy use Search's guards.
package autoplacement
