// Package control is the client's connection to the dispatcher.
//
// A Link (link.go) makes the calls that a user waits for, and repeats them until a timeout (ask.go). It delivers other
// calls in order in the background, and repeats them as long as the session lives (queue.go). So the report of a
// received stream reaches the dispatcher before the close of its epoch. A Link also measures how long the dispatcher
// has not answered. target.go parses addresses, datasets.go uploads graphs, fork.go refuses use in a forked child.
//
// The package knows calls. It must not know jobs, epochs or workers. Link.mu is held for field accesses only. Do not take
// another lock under it.
package control
