// Package autoplacement will decide how many workers of a job run on the trainer's host and how many elsewhere, at the
// lowest cost at which the trainer does not wait.
//
// The seam: a policy is a function from plain measurements to a decision with its reasons. What it is given here is
// how long the trainer waited, what it costs to run a worker here and there, and how many there are.
// What it gives back is recorded in the job's plan before it is used. It imports nothing of ours, asks no
// clock and keeps no state of its own, so that a simulator can replay recorded measurements through it.
package autoplacement
