// Package run runs the streams that the dispatcher has leased to this worker.
//
// Streams holds all streams of the worker. A Stream stays until the dispatcher takes it back. It has one run at a time: a
// goroutine (run.main) that opens the graphs, fetches elements from TensorFlow and appends them to the stream's window.
//
// A stream's life, by file: streams.go starts and stops streams; stream.go holds one and restarts it; resume.go chooses
// the index where a run begins; open_turns.go waits for the turn to open graphs; open.go opens them; run.go is the run;
// produce.go fetches elements and frames.go puts small ones into frames; partial.go hands over a frame that waits for
// more; attach.go binds a reader; departure.go ends runs before a planned departure. Beside it: crashguard.go reports crash
// marks to the dispatcher if the last worker of the stream died; checkpoints.go takes and restores checkpoints; remainder.go
// keeps short last batches, joiner.go collects them for the closing stream, fetchremainder.go reads them from other
// workers; writers.go orders runs that write the same files; sampling.go, load.go and report.go say how streams stand;
// failures.go words errors. These files stay one package, because all of them work on one run's state.
//
// Locks: a stream's lock is taken before its window's. Each opening holds openings.lock for reading. An
// opening after a worker's death holds it for writing. exclusive (crash guard) is taken before openings.lock. Fields of run
// that follow "goroutine of main" belong to that goroutine alone.
//
// On a crash nothing is saved here. The dispatcher leases the stream again, and the next run begins at the index that
// resume.go derives from the new StartStream.
package run
