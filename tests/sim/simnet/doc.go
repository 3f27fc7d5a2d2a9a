// Package simnet is a network in memory. Tests delay, lose, cut and hold packets on it. It uses the clock of a
// testing/synctest bubble. It models what programs see of TCP. Bytes arrive in order or not at all, and lost packets arrive
// when the network heals. An ended process resets its connections, and a host without power is silent.
//
// net.go has the network and the faults of its links. host.go has hosts that die, stall and listen. conn.go has connections.
package simnet
