// Package autoorder will decide in which order a dataset's transformations run: steps that shrink elements early, steps that
// inflate them late, where the values stay the same.
//
// The seam: a policy is a function from plain measurements to a decision with its reasons. What it is given here is
// per-node elements, bytes in and out and self time (the NodeMetrics that workers report), and which nodes may
// pass which.
// What it gives back is recorded in the job's plan before it is used. It imports nothing of ours, asks no
// clock and keeps no state of its own, so that a simulator can replay recorded measurements through it.
package autoorder
