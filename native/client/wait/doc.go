// Package wait is how the client waits: a Backoff between attempts, with jitter, a Sleep that ends with a context, a Signal that wakes one
// waiter, and a Time that also counts while the host is suspended.
//
// Nothing here knows what is being waited for. Add nothing that does.
package wait
