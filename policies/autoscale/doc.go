// Package autoscale will decide how many workers a service has. It has no code yet: this file reserves the
// place and states the contract.
//
// A policy is a pure function from measurements to a decision with its reasons. Its input will be the elements
// per second that each job consumes and each worker produces, and the delay after which earlier changes took
// effect. Its output will be a number of workers.
//
// A policy imports no other package of Pecan, reads no clock and keeps no state, so that a simulator can replay
// recorded measurements. The dispatcher records a decision in its journal before it acts on it.
package autoscale
