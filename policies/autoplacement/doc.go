// Package autoplacement will decide how many workers of a job run on the trainer's host and how many on other
// hosts, at the lowest cost at which the trainer does not wait. It has no code yet: this file reserves the
// place and states the contract.
//
// A policy is a pure function from measurements to a decision with its reasons. Its input will be the time that
// the trainer waited, the cost of a worker on each kind of host, and the number of workers there. Its output
// will be the number of workers of each kind.
//
// A policy imports no other package of Pecan, reads no clock and keeps no state, so that a simulator can replay
// recorded measurements. The dispatcher records a decision in its journal before it acts on it.
package autoplacement
