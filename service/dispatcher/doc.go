// Package dispatcher puts the world around the core: gRPC, a store, a clock and randomness.
//
// Every request is checked here for form (names, limits, enums) and in the core for sense. One mutex guards the core. What a
// decision wants done waits in a queue until its records are on disk; a single goroutine writes the queue, many decisions at a time,
// and then releases replies and effects in the order of the decisions. So nothing that anybody was told is forgotten by a
// crash, and nothing that a crash forgets was told to anybody. When the store fails, the dispatcher stops.
package dispatcher
