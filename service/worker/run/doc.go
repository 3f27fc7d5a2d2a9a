// Package run runs the streams that the dispatcher has leased to this worker.
//
// Streams holds all streams of the worker. A Stream stays until the dispatcher takes it back. It has one run at a time:
// a goroutine (run.main) that opens the graphs, fetches elements from TensorFlow and appends them to the stream's
// window.
//
// The package has more files and lines than others, because all of them use the state of one run or stream under its
// lock. The main files follow a stream's life:
//
//   - streams.go starts and stops streams. stream.go has one stream, begins its runs, and chooses
//     the index where a run begins. run.go is the run.
//   - open.go waits for the lock of opening_lock.go, and opens the graphs. pooled.go begins a stream in an iterator
//     that runs many streams, and pool.go keeps such iterators between streams. inline.go says which streams run inline.
//   - produce.go fetches elements, and entries.go puts small ones into window entries. It passes on an entry that
//     waits for more.
//   - attach.go connects a reader. drain.go ends runs before a planned departure.
//
// The other files support them:
//
//   - crashguard.go reports crash marks to the dispatcher if the last worker of the stream died.
//   - checkpoints.go saves and restores checkpoints.
//   - remainder.go keeps short last batches back for the closing stream. joiner.go collects them there, and fetchremainder.go
//     reads them from other workers.
//   - parts.go runs the steps upstream of a cached step, over one part of the source after another.
//   - writers.go orders runs that write the same files.
//   - sampling.go, load.go and report.go report the state of streams. failures.go makes errors.
//
// Locks: a stream's lock is taken before its window's. Each opening shares the opening lock, and so does the first
// element of a pooled stream. A closing stream releases it before it waits for other streams. An opening after a
// worker's death holds it exclusively, and so does an element that is computed alone after two deaths. exclusive (crash
// guard) is taken before the opening lock. Fields of run that follow "goroutine of main" belong to that goroutine
// alone.
//
// Do not renumber elements, and do not begin a run at another index than stream.go says: readers accept only the next
// index. Open a stream only through openLocked: after a death, it opens one stream alone.
//
// On a crash nothing is saved here. The dispatcher leases the stream again, and the next run begins at the index that
// stream.go derives from the new StartStream.
package run
