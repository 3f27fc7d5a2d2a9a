// Package worker hosts streams: it asks the dispatcher which ones to run, runs their graphs with TensorFlow, keeps a
// bounded window of ready elements for each, and pushes them to readers over the data plane (docs/formats/frame.md).
//
// Who owns what. A stream has one run at a time: a goroutine that fetches elements from TensorFlow and appends them to
// the stream's window as entries, each of which travels in one frame. An entry stays in the window until the reader's
// CREDIT passes it, so that a broken connection costs no recomputation. A connection has one goroutine that reads frames
// and one that writes them; the latter takes entries from the windows of its channels in turn. Locks are taken in
// the order stream, window, connection.
//
// What happens on a crash. The worker keeps nothing on disk. When it dies its streams are leased to another worker, which
// runs them from the start and drops what the reader has already. When the dispatcher is away the worker goes on
// serving until the lease time is over, then it stops by itself, because its streams may run elsewhere by then.
package worker
