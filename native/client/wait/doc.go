// Package wait has the client's ways to wait: between attempts, for a signal, and over a suspension. A Backoff with jitter is
// between attempts, a Sleep ends with a context, and a Signal wakes one waiter. A Time also counts while the host is
// suspended.
//
// backoff.go has the Backoff, Sleep and Signal. clock.go has the Time.
//
// The package must not know the conditions that its callers wait for.
package wait
