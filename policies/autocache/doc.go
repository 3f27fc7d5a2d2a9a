// Package autocache will decide whether workers cache the elements after a step, or compute them again in each
// epoch. It has no code yet: this file reserves the place and states the contract.
//
// A policy is a pure function from measurements to a decision with its reasons. Its input will be the time to
// compute an element, the time to read it back, and its size in bytes. Its output will be the step whose
// elements are cached, or none.
//
// A policy imports no other package of Pecan, reads no clock and keeps no state, so that a simulator can replay
// recorded measurements. The dispatcher records a decision in its journal before it acts on it.
package autocache
