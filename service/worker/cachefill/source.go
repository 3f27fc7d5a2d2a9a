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

// Source is the source of the graph downstream of a cached step. It reads the stream's segment if there is one.
// Otherwise it runs the upstream graph and writes a segment, as far as it can. Whatever happens to files, it
// yields the elements of the upstream graph, each once. TensorFlow calls Pull from threads of its own, one at a
// time.
type Source struct {
	Directory *Directory
	Action    *pecanv1.CacheAction
	// Step is the cached step. Share is the part of the source, of Streams parts, that the segment belongs to.
	Step           *pecanv1.CachePlan
	Share, Streams uint32
	// Lease is that of the stream.
	Lease uint64
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
func (s *Source) Begin(graphs *rewrite.StreamGraphs, iterate func() (it *tf.Iterator, stop func(), err error)) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.graphs, s.iterate = graphs, iterate
	s.source = digest(s.graphs.FileNames)
	if segment := s.Action.GetSegment(); segment != nil {
		return s.beginReading(segment)
	}
	if err := s.open(); err != nil {
		return err
	}
	s.name = cache.Name(s.Directory.Cluster(), s.Action.GetKey(), s.Share, s.Lease, s.Directory.runs.Add(1), s.Directory.Worker)
	s.Directory.begin(s.name)
	writer, err := s.Directory.dir.Create(s.name, s.segmentID(), s.Directory.Compress)
	if err != nil {
		s.Directory.health.failed(err)
		s.Directory.drop(s.name, err)
		return nil
	}
	s.writer = writer
	return nil
}

// Runtime returns the context that runs the downstream graph.
func (s *Source) Runtime() (*tf.Context, error) {
	s.Directory.running.Store(true)
	return s.Directory.Runtime()
}

func (s *Source) segmentID() cache.ID {
	return cache.ID{
		Key: s.Action.GetKey(), Stream: s.Share, Streams: s.Streams, Source: s.source,
	}
}

func (s *Source) beginReading(segment *pecanv1.CacheSegment) (err error) {
	if segment.GetSource() != s.source {
		s.Directory.invalidate(segment, false, errors.New("the source files or TensorFlow have changed since it was written"))
		return s.open()
	}
	s.reader, err = s.Directory.dir.Open(cache.Segment{
		Name: segment.GetName(), Bytes: segment.GetBytes(), Checksum: segment.GetChecksum(), Elements: segment.GetElements(), ID: s.segmentID(),
	})
	if err != nil {
		s.Directory.invalidate(segment, true, err)
		return s.open()
	}
	return nil
}

// open makes the iterator of the upstream graph.
func (s *Source) open() error {
	if s.closed {
		return tf.ErrCancelled
	}
	it, stop, err := s.iterate()
	if err != nil {
		return err
	}
	s.upstream, s.stop = &upstream{it: it, packed: s.Step.GetPacked()}, stop
	return nil
}

// Pull implements tf.Source.
func (s *Source) Pull() ([]*tf.Tensor, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closed:
		return nil, tf.ErrCancelled
	case s.over:
		return nil, io.EOF
	}
	if s.reader != nil {
		tensors, err := s.read()
		if err == nil || errors.Is(err, io.EOF) {
			return tensors, err
		}
		s.Directory.invalidate(s.Action.GetSegment(), true, err)
		_ = s.reader.Close()
		s.reader = nil
	}
	if s.upstream == nil {
		if err := s.compute(); err != nil {
			return nil, err
		}
	}
	got, err := s.upstream.next()
	switch failed := (*tf.Error)(nil); {
	case errors.Is(err, io.EOF):
		s.over = true
		s.commit()
		return nil, err
	case errors.As(err, &failed):
		// Failures may depend on more than the files, and a segment cannot say which of its elements would fail.
		s.drop(fmt.Errorf("an element failed: %s", failed.Message))
		return nil, err
	case err != nil:
		return nil, err
	}
	if s.writer != nil {
		end := s.Directory.writing.begin()
		err := s.writer.Append(&got.chunk)
		end(got.chunk.Count, got.chunk.Size())
		if err != nil {
			s.Directory.health.failed(err)
			s.drop(err)
		}
	}
	s.delivered += uint64(got.chunk.Count)
	return got.tensors, nil
}

// read returns the next elements of the segment.
func (s *Source) read() ([]*tf.Tensor, error) {
	end := s.Directory.reading.begin()
	chunk, err := s.reader.Next()
	end(chunk.Count, chunk.Size())
	if err != nil {
		s.over = errors.Is(err, io.EOF)
		return nil, err
	}
	tensors, err := tensorsOf(&chunk, &s.table)
	if err != nil {
		return nil, err
	}
	s.delivered += uint64(chunk.Count)
	s.Directory.read.Add(uint64(chunk.Size()))
	return tensors, nil
}

// compute continues with the upstream graph after the segment has broken off. If that fails, the next Pull tries
// again from the same position: any other position would repeat elements.
func (s *Source) compute() (err error) {
	if err := s.open(); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			s.shut()
		}
	}()
	for left := s.delivered; left > 0; {
		n, err := s.upstream.it.Skip(int64(min(left, mostSkipped)))
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
func (s *Source) shut() {
	if s.upstream != nil {
		s.upstream.close()
		s.stop()
		s.upstream = nil
	}
}

// commit makes the segment durable and ready to report. The files must still be those that the elements came
// from.
func (s *Source) commit() {
	if s.writer == nil {
		return
	}
	writer := s.writer
	if digest(s.graphs.FileNames) != s.source || s.tablesChanged() {
		s.drop(errors.New("the source files changed while they were read"))
		return
	}
	s.writer = nil
	end := s.Directory.writing.begin()
	segment, err := writer.Commit()
	end(0, 0)
	if err != nil {
		s.Directory.health.failed(err)
		s.Directory.drop(s.name, err)
		return
	}
	s.Directory.health.succeeded()
	s.written.Store(&pecanv1.CacheSegment{
		Key: segment.Key, Stream: segment.Stream, Streams: segment.Streams, Name: segment.Name, Bytes: segment.Bytes, Checksum: segment.Checksum, Elements: segment.Elements, Source: segment.Source,
	})
}

// tablesChanged reports whether a file has changed since the graphs' tables were named, which was before the
// digest was computed.
func (s *Source) tablesChanged() bool {
	return !maps.Equal(dataset.FileStates(slices.Collect(maps.Keys(s.graphs.Files))), s.graphs.Files)
}

// Report reports a finished segment to the dispatcher. It does not wait for a Pull in progress.
func (s *Source) Report() {
	if segment := s.written.Swap(nil); segment != nil {
		acknowledged := s.Directory.report(segment)
		s.mu.Lock()
		s.acknowledged = acknowledged
		s.mu.Unlock()
	}
}

// drop abandons the writing; the elements continue.
func (s *Source) drop(why error) {
	if s.writer == nil {
		return
	}
	if err := s.writer.Abort(); err != nil {
		s.Log.Debug("removing an incomplete segment failed", "file", s.name, "error", err)
	}
	s.writer = nil
	s.Directory.drop(s.name, why)
}

// AwaitAck waits at the end of the stream, for a bounded time, until the dispatcher has acknowledged the
// segment. The next epoch then finds the cache.
func (s *Source) AwaitAck() {
	s.Report()
	s.mu.Lock()
	acknowledged := s.acknowledged
	s.mu.Unlock()
	if acknowledged == nil {
		return
	}
	timeout := time.NewTimer(ackWait)
	defer timeout.Stop()
	select {
	case <-acknowledged:
	case <-timeout.C:
	case <-s.Context.Done():
	}
}

// Close frees what is open. A segment that is not complete is discarded.
func (s *Source) Close() {
	s.Report()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	s.drop(nil)
	if s.reader != nil {
		_ = s.reader.Close()
	}
	s.shut()
}
