// Package autocache will decide whether the elements of a dataset, or of a step inside it, are computed again each epoch or
// kept and read back.
//
// The seam: a policy is a function from plain measurements to a decision with its reasons. What it is given here is
// time to compute an element, time to read it back, and the bytes it takes.
// What it gives back is recorded in the job's plan before it is used. It imports nothing of ours, asks no
// clock and keeps no state of its own, so that a simulator can replay recorded measurements through it.
package autocache
