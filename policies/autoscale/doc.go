// Package autoscale will decide how many workers a service has, from what its jobs consume and what a worker gives.
//
// The seam: a policy is a function from plain measurements to a decision with its reasons. What it is given here is
// elements a second that each job consumes and each worker gives, and how long changes took to show.
// What it gives back is recorded in the job's plan before it is used. It imports nothing of ours, asks no
// clock and keeps no state of its own, so that a simulator can replay recorded measurements through it.
package autoscale
