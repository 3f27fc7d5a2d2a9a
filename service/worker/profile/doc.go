// Package profile counts what each step of a stream's graph did: elements, bytes and CPU time.
//
// A Profiler reads one running iterator. Elements and bytes come from the graph's own meters where there are some, else
// from tf.data's model of the iterator, which also has the times. Totals sums the Profilers of all runs per job. Its
// reports only grow, carry a generation and a sequence number, and are therefore safe to repeat or reorder.
//
// profiler.go reads an iterator. metrics.go computes what each step did. matcher.go pairs the model's nodes with the
// graph's steps. inside.go has the steps in functions. meters.go reads the counters of a graph. history.go passes counts
// from run to run of a pooled iterator. totals.go sums runs per job. cpuwait.go estimates how long threads waited for a core.
//
// A Profiler belongs to one run. Totals has one lock, which is taken after a run's. Totals calls the Run interface
// under this lock, so an implementation must not call back into Totals.
package profile
