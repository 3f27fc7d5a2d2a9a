// Package wait has the client's ways to wait: a Backoff between attempts, with jitter, a Sleep that ends with a context, a Signal that wakes
// one waiter, and a Time that also counts while the host is suspended.
//
// Files: backoff.go has the Backoff, Sleep and Signal, clock.go the Time.
//
// The package must not know the conditions that its callers wait for.
package wait
