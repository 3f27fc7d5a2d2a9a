// Package autoscale holds what every policy for workers shares, and the published policies that choose a number
// of remote workers. The default policy chooses the number and the place together, in package autoplacement:
// the two choices depend on each other, so one policy makes both.
//
// A policy is a deterministic state machine. Its inputs are a Goal and a Window: the measurements of one job
// over some seconds. Its output is a Decision: a Configuration with reasons and numbers. Equal inputs in equal
// order give equal decisions. The state is a plain value that the caller keeps. After a crash the caller starts
// with a new value: the policy loses its measurements and stays at the configuration of the next window.
//
// Files: window.go has the measurements, decision.go the output, goal.go prices, objectives and limits. Cachew
// (cachew.go), HPA (hpa.go), FastFlow (fastflow.go) and Fixed (fixed.go) are for comparison: they apply none of the
// default's guards.
//
// The package imports no other package of Pecan and reads no clock, so that a simulator can replay recorded
// measurements. docs/design/0013-autoscaling.md has the reasons.
//
// Do not add a policy's own state here: package autoplacement and other policies share this package.
package autoscale
