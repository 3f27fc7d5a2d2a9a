// Package control is the client's connection to the dispatcher.
//
// A Link makes the calls that a user waits for (ask.go: repeated until a timeout), delivers calls in the background in order (queue.go:
// repeated for as long as the session lives, so a report of a received stream reaches the dispatcher before the close of its epoch), and
// knows how long the dispatcher has not answered. target.go parses addresses, datasets.go uploads graphs, fork.go refuses use in a forked
// child.
//
// The package knows calls but no jobs, epochs or workers. Link.mu is held for field accesses only; no other lock is taken under it.
package control
