package cachefill

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pecan-ml/pecan/service/graph/rewrite"

	"github.com/pecan-ml/pecan/native/tf"
	"github.com/pecan-ml/pecan/proto/frame"
	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/cache"
	"github.com/pecan-ml/pecan/service/worker/dataset"
)

// mostSkipped bounds how many elements are skipped in one call.
const mostSkipped = 4096

// Source is the source of the graph above a cached step. It reads the stream's segment if there is one.
// Otherwise it runs the upstream graph and writes a segment, as far as it can. Whatever happens to files, it
// yields the elements of the upstream graph, each once. TensorFlow calls Pull from threads of its own, one at a
// time.
type Source struct {
	Directory *Directory
	Action    *pecanv1.CacheAction
	// ID, Streams and Lease describe the stream. Worker is the id of this worker.
	ID      *pecanv1.StreamId
	Streams uint32
	Lease   uint64
	Worker  string
	// Packed: small elements travel in packs, as the graph above expects.
	Packed bool
	// Context ends with the run.
	Context context.Context
	Log     *slog.Logger

	// graphs are those of the stream. iterate makes the iterator of the upstream graph, and the function that
	// closes it.
	graphs  *rewrite.StreamGraphs
	iterate func() (it *tf.Iterator, stop func(), err error)
	// source is the digest of what the elements come from; empty if it is not known.
	source string

	mu     sync.Mutex
	closed bool
	reader *cache.Reader
	table  frame.Table
	// delivered counts elements, from the segment and from the upstream graph.
	delivered uint64
	upstream  *upstream
	stop      func()
	writer    *cache.Writer
	name      string
	// over is set at the end of the elements. acknowledged is closed when the dispatcher has the segment.
	over         bool
	acknowledged <-chan struct{}
	// written is a segment that is not reported yet. The run reports it, because TensorFlow's threads must not
	// use the session.
	written atomic.Pointer[pecanv1.CacheSegment]
}

// Begin opens the segment to read, or begins to write one.
func (k *Source) Begin(graphs *rewrite.StreamGraphs, iterate func() (it *tf.Iterator, stop func(), err error)) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.graphs, k.iterate = graphs, iterate
	k.source = digest(k.graphs.FileNames)
	if segment := k.Action.GetSegment(); segment != nil {
		return k.beginReading(segment)
	}
	if err := k.open(); err != nil {
		return err
	}
	k.name = cache.Name(k.Action.GetKey(), k.ID.GetStream(), k.Lease, k.Directory.runs.Add(1), k.Worker)
	k.Directory.begin(k.name)
	writer, err := k.Directory.dir.Create(k.name, k.segmentID(), k.Directory.Compress)
	if err != nil {
		k.Directory.drop(k.name, err)
		return nil
	}
	k.writer = writer
	return nil
}

// Runtime returns the context that runs the graph above.
func (k *Source) Runtime() (*tf.Context, error) {
	k.Directory.running.Store(true)
	return k.Directory.Runtime()
}

func (k *Source) segmentID() cache.ID {
	return cache.ID{
		Key: k.Action.GetKey(), Stream: k.ID.GetStream(), Streams: k.Streams, Source: k.source,
	}
}

func (k *Source) beginReading(segment *pecanv1.CacheSegment) (err error) {
	if segment.GetSource() != k.source {
		k.Directory.invalidate(segment, false, errors.New("the source files or TensorFlow have changed since it was written"))
		return k.open()
	}
	k.reader, err = k.Directory.dir.Open(cache.Segment{
		Name: segment.GetName(), Bytes: segment.GetBytes(), Checksum: segment.GetChecksum(), Elements: segment.GetElements(), ID: k.segmentID(),
	})
	if err != nil {
		k.Directory.invalidate(segment, true, err)
		return k.open()
	}
	return nil
}

// open makes the iterator of the upstream graph.
func (k *Source) open() error {
	if k.closed {
		return tf.ErrCancelled
	}
	it, stop, err := k.iterate()
	if err != nil {
		return err
	}
	k.upstream, k.stop = &upstream{it: it, packed: k.Packed}, stop
	return nil
}

// Pull implements tf.Source.
func (k *Source) Pull() ([]*tf.Tensor, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	switch {
	case k.closed:
		return nil, tf.ErrCancelled
	case k.over:
		return nil, io.EOF
	}
	if k.reader != nil {
		tensors, err := k.read()
		if err == nil || errors.Is(err, io.EOF) {
			return tensors, err
		}
		k.Directory.invalidate(k.Action.GetSegment(), true, err)
		_ = k.reader.Close()
		k.reader = nil
	}
	if k.upstream == nil {
		if err := k.compute(); err != nil {
			return nil, err
		}
	}
	got, err := k.upstream.next()
	switch failed := (*tf.Error)(nil); {
	case errors.Is(err, io.EOF):
		k.over = true
		k.commit()
		return nil, err
	case errors.As(err, &failed):
		// Failures may depend on more than the files, and a segment cannot say which of its elements would fail.
		k.drop(fmt.Errorf("an element failed: %s", failed.Message))
		return nil, err
	case err != nil:
		return nil, err
	}
	if k.writer != nil {
		if err := k.writer.Append(&got.chunk); err != nil {
			k.drop(err)
		}
	}
	k.delivered += uint64(got.chunk.Count)
	return got.tensors, nil
}

// read returns the next elements of the segment.
func (k *Source) read() ([]*tf.Tensor, error) {
	chunk, err := k.reader.Next()
	if err != nil {
		k.over = errors.Is(err, io.EOF)
		return nil, err
	}
	tensors, err := tensorsOf(&chunk, &k.table)
	if err != nil {
		return nil, err
	}
	k.delivered += uint64(chunk.Count)
	k.Directory.read.Add(uint64(chunk.Size()))
	return tensors, nil
}

// compute continues with the upstream graph after the segment has broken off. If that fails, the next Pull tries
// again from the same position: any other position would repeat elements.
func (k *Source) compute() (err error) {
	if err := k.open(); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			k.shut()
		}
	}()
	for left := k.delivered; left > 0; {
		n, err := k.upstream.it.Skip(int64(min(left, mostSkipped)))
		left -= uint64(n)
		if err != nil {
			if errors.Is(err, io.EOF) {
				return fmt.Errorf("the dataset has %d fewer elements at cache() than when they were written: look for files that change", left)
			}
			return err
		}
	}
	return nil
}

// shut frees the iterator of the upstream graph.
func (k *Source) shut() {
	if k.upstream != nil {
		k.upstream.close()
		k.stop()
		k.upstream = nil
	}
}

// commit makes the segment durable and ready to report. The files must still be those that the elements came
// from.
func (k *Source) commit() {
	if k.writer == nil {
		return
	}
	writer := k.writer
	if digest(k.graphs.FileNames) != k.source || k.tablesChanged() {
		k.drop(errors.New("the source files changed while they were read"))
		return
	}
	k.writer = nil
	s, err := writer.Commit()
	if err != nil {
		k.Directory.drop(k.name, err)
		return
	}
	k.written.Store(&pecanv1.CacheSegment{
		Key: s.Key, Stream: s.Stream, Streams: s.Streams, Name: s.Name, Bytes: s.Bytes, Checksum: s.Checksum, Elements: s.Elements, Source: s.Source,
	})
}

// tablesChanged reports whether a file has changed since the graphs' tables were named, which was before the
// digest was computed.
func (k *Source) tablesChanged() bool {
	return !maps.Equal(dataset.FileStates(slices.Collect(maps.Keys(k.graphs.Files))), k.graphs.Files)
}

// Report reports a finished segment to the dispatcher. It does not wait for a Pull in progress.
func (k *Source) Report() {
	if segment := k.written.Swap(nil); segment != nil {
		named := k.Directory.report(segment)
		k.mu.Lock()
		k.acknowledged = named
		k.mu.Unlock()
	}
}

// drop abandons the writing; the elements continue.
func (k *Source) drop(why error) {
	if k.writer == nil {
		return
	}
	if err := k.writer.Abort(); err != nil {
		k.Log.Debug("removing an incomplete segment failed", "file", k.name, "error", err)
	}
	k.writer = nil
	k.Directory.drop(k.name, why)
}

// AwaitAck waits at the end of the stream, for a bounded time, until the dispatcher has acknowledged the
// segment. The next epoch then finds the cache.
func (k *Source) AwaitAck() {
	k.Report()
	k.mu.Lock()
	named := k.acknowledged
	k.mu.Unlock()
	if named == nil {
		return
	}
	timeout := time.NewTimer(ackWait)
	defer timeout.Stop()
	select {
	case <-named:
	case <-timeout.C:
	case <-k.Context.Done():
	}
}

// Close frees what is open. A segment that is not complete is discarded.
func (k *Source) Close() {
	k.Report()
	k.mu.Lock()
	defer k.mu.Unlock()
	k.closed = true
	k.drop(nil)
	if k.reader != nil {
		_ = k.reader.Close()
	}
	k.shut()
}
