// Package trial measures whether another order of a dataset's steps is faster and gives the same elements.
//
// A Queue runs the trials that the dispatcher asks for, one after another, while streams run. A trial runs the first
// elements of some streams in both orders, by turns, compares them, and measures their CPU. Its elements go to no reader,
// and it writes no files. A panic or failure in a trial refuses the order; it never harms the worker's streams.
//
// queue.go takes commands and answers them. trial.go has one trial. paired.go runs a stream in both orders. compare.go
// compares elements, and decides whether CPU is saved. threads.go measures the CPU of a trial's threads.
//
// All of a trial happens in one goroutine that is bound to its thread, so that its CPU is separate from that of streams.
//
// Do not compute elements in another goroutine, and do not run a trial in iterators of service/worker/run: such trials found
// false gains. Do not adopt an order here: the dispatcher does, in service/dispatcher/core/rollout.
package trial
