// Package wait has the client's ways to wait: between attempts, for a signal, and over a suspension. A Backoff
// gives the delay between two attempts, with jitter. A Sleep ends with its context. A Signal wakes one waiter. A Time includes
// time in which the host is suspended.
//
// backoff.go has the Backoff, Sleep and Signal. clock.go has the Time.
//
// The package must not know the conditions that its callers wait for.
package wait
