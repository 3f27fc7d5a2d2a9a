package cachefill

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pecan-ml/pecan/native/tf"
	"github.com/pecan-ml/pecan/proto/frame"
	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/cache"
	"github.com/pecan-ml/pecan/service/graph/rewrite"
	"github.com/pecan-ml/pecan/service/worker/dataset"
)

// mostSkipped bounds how many elements are skipped in one call.
const mostSkipped = 4096

// Upstream runs the steps upstream of a cached step, over one part of the source after another.
type Upstream interface {
	// Graphs returns the graphs of a part. UpstreamOfCache has the cached step and all steps upstream. A part that is read
	// does not need the graphs.
	Graphs(part uint32) (*rewrite.StreamGraphs, error)
	// Open makes the iterator of a part, and the function that closes it. With alone, no other part shares the iterator, so
	// that an error of its first element belongs to that element.
	Open(part uint32, graphs *rewrite.StreamGraphs, alone bool) (it *tf.Iterator, stop func(), err error)
	// KeptBack returns the short batches that the part kept back for the closing stream. It is called once, after the last
	// element of the part.
	KeptBack() [][]*tf.Tensor
}

// Source is the source of the graph downstream of a cached step. It yields the elements of one part after another. It reads
// a part from its segment if there is one. Otherwise it runs the steps upstream and writes a segment, as far as it can.
// If a file fails, it still yields the elements of the steps upstream, each once. TensorFlow calls Pull from threads of
// its own, one at a time.
type Source struct {
	Directory *Directory
	Action    *pecanv1.CacheAction
	// Stream are the graphs of the stream. AllParts is the number of parts of all streams.
	Stream   *rewrite.StreamGraphs
	AllParts uint32
	// ID and Lease are those of the stream.
	ID    *pecanv1.StreamId
	Lease uint64
	// Context ends with the run, and when Stop is called before the Source is closed.
	Context context.Context
	Stop    context.CancelFunc
	Log     *slog.Logger
	// Lends is set if the downstream graph changes no element that it gets. Its op may then fetch elements that are written later.
	Lends bool
	// KeepRemainder gets what a part keeps back for the closing stream, at the end of the part.
	KeepRemainder func(batch []*tf.Tensor)

	from Upstream

	mu     sync.Mutex
	closed bool
	// done is the number of parts that are over.
	done int
	// begun is set if a part is open. source is the digest of what its elements come from, and graphs are those that
	// compute it; nil before they are needed.
	begun  bool
	source string
	graphs *rewrite.StreamGraphs
	// segment is the segment that is read, and reader reads its file; nil if none is read.
	segment *pecanv1.CacheSegment
	reader  *cache.Reader
	table   frame.Table
	early   early
	// delivered counts elements of the part, from the segment and from the upstream graph. alone is set if that graph has
	// an iterator of its own.
	delivered uint64
	upstream  *upstream
	alone     bool
	stop      func()
	// computing is how long the upstream graph has computed elements of the part.
	computing time.Duration
	// kept are the short batches that were read from the segment.
	kept   [][]*tf.Tensor
	writer *cache.Writer
	name   string
	// committing is the newest commit; nil before the first one. settling is for how long parts have waited for commits.
	committing atomic.Pointer[commit]
	settling   time.Duration

	reports reports
}

// Begin opens the first part.
func (s *Source) Begin(from Upstream) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.from = from
	if s.Action.GetAsks() {
		// The first Pull begins the part: it may wait for another worker.
		return nil
	}
	return s.beginPart()
}

// FirstMissing returns the first part that has no segment.
func (s *Source) FirstMissing() (part uint32, missing bool) {
	for _, part := range s.Stream.Parts {
		if s.recordedOf(part) == nil {
			return part, true
		}
	}
	return 0, false
}

// Runtime returns the context that runs the downstream graph.
func (s *Source) Runtime() (*tf.Context, error) {
	s.Directory.running.Store(true)
	return s.Directory.Runtime()
}

// part is the number of the open part.
func (s *Source) part() uint32 { return s.Stream.Parts[s.done] }

// digest identifies what the elements of the open part come from now.
func (s *Source) digest() (string, error) { return digest(s.Context, s.Stream.FileNames(s.part())) }

// dtypes are the dtypes of an element's tensors.
func (s *Source) dtypes() (dtypes []uint32) {
	for _, t := range s.Stream.StoredTypes {
		dtypes = append(dtypes, uint32(t))
	}
	return dtypes
}

func (s *Source) segmentID() cache.ID {
	return cache.ID{Key: s.Action.GetKey(), Part: s.part(), Parts: s.AllParts, Source: s.source}
}

// recordedOf returns the segment of a part; nil without one.
func (s *Source) recordedOf(part uint32) *pecanv1.CacheSegment {
	for _, segment := range s.Action.GetSegments() {
		if segment.GetPart() == part {
			return segment
		}
	}
	return nil
}

// beginPart opens the segment of the next part to read, or begins to write one. After an error, it can be called again.
func (s *Source) beginPart() (err error) {
	if s.closed {
		return tf.ErrCancelled
	}
	source, unknown := s.digest()
	s.source, s.graphs, s.delivered, s.alone, s.computing = source, nil, 0, false, 0
	s.segment = s.recordedOf(s.part())
	switch {
	case s.Context.Err() != nil:
		return tf.ErrCancelled
	case unknown != nil:
		s.Directory.skip(unknown)
		err = s.open()
	case s.segment != nil:
		err = s.beginReading()
	default:
		err = s.beginUnstored()
	}
	s.begun = err == nil
	return err
}

// beginUnstored begins a part that had no segment when the stream was leased.
func (s *Source) beginUnstored() error {
	written := s.part() < s.Action.GetWrittenBelow()
	if written && s.Action.GetAsks() {
		// Others may wait for what is stored. The run reports nothing while a shuffle fills its buffer.
		s.Report()
		s.segment = s.Directory.segmentOf(s.Context, &pecanv1.AskCachePart{Id: s.ID, Lease: s.Lease, Key: s.Action.GetKey(), Part: s.part()})
		switch {
		case s.Context.Err() != nil:
			return tf.ErrCancelled
		case s.segment != nil:
			return s.beginReading()
		}
	}
	if err := s.open(); err != nil {
		return err
	}
	if !written {
		return nil
	}
	if file := dataset.WithoutVersion(s.graphs.Files); file != "" {
		s.Directory.skip(fmt.Errorf("the version of %q is not known, and a table is filled from it", file))
		return nil
	}
	s.beginWriting()
	return nil
}

func (s *Source) beginReading() (err error) {
	if s.segment.GetSource() != s.source {
		s.invalidate(false, errors.New("the source files or TensorFlow have changed since it was written"))
		return s.open()
	}
	if s.reader = s.takeEarly(s.segment); s.reader == nil {
		if s.reader, err = s.openSegment(s.segment); err != nil {
			s.invalidate(true, err)
			return s.open()
		}
	}
	s.openEarly()
	return nil
}

func (s *Source) beginWriting() {
	s.name = cache.Name(s.Directory.Cluster(), s.Action.GetKey(), s.part(), s.Lease, s.Directory.begun.Add(1), s.Directory.Worker)
	s.Directory.begin(s.name)
	if why := s.behind(); why != nil {
		s.Directory.drop(s.name, why)
		return
	}
	writer, err := s.Directory.dir.Create(s.Context, s.name, s.segmentID(), s.dtypes(), s.Directory.compressAbove())
	if err != nil {
		s.Directory.health.failed(err)
		s.Directory.drop(s.name, err)
		return
	}
	s.writer = writer
}

// open makes the iterator of the upstream graph.
func (s *Source) open() error {
	if s.closed {
		return tf.ErrCancelled
	}
	if s.graphs == nil {
		graphs, err := s.from.Graphs(s.part())
		if err != nil {
			return err
		}
		s.graphs = graphs
	}
	it, stop, err := s.from.Open(s.part(), s.graphs, s.alone)
	if err != nil {
		return err
	}
	s.upstream, s.stop = &upstream{it: it, packed: s.Action.GetStep().GetPacked()}, stop
	return nil
}

// pull returns the next elements of the open part.
func (s *Source) pull() ([]*tf.Tensor, error) {
	if s.reader != nil {
		tensors, err := s.read()
		if err == nil || errors.Is(err, io.EOF) {
			return tensors, err
		}
		s.invalidate(true, err)
		s.closeReader()
	}
	if s.upstream == nil {
		if err := s.compute(); err != nil {
			return nil, err
		}
	}
	got, err := s.fetch()
	if err != nil {
		s.failed(err)
		return nil, err
	}
	s.computed(got)
	return got.tensors, nil
}

// write appends elements to the segment, if one is written.
func (s *Source) write(chunk *cache.Chunk) {
	if s.writer == nil {
		return
	}
	end := s.Directory.writing.begin()
	err := s.writer.Append(chunk)
	end(chunk.Count, chunk.Size())
	if err != nil {
		s.Directory.health.failed(err)
		s.drop(err)
	}
}

// fetch fetches the next elements of the upstream graph. If the first one fails in an iterator that other parts share, the
// part gets its own iterator, because the opening may have failed.
func (s *Source) fetch() (*pulled, error) {
	defer func(began time.Time) { s.computing += time.Since(began) }(time.Now())
	got, err := s.upstream.next()
	if failed := (*tf.Error)(nil); !errors.As(err, &failed) || s.delivered > 0 || s.alone {
		return got, err
	}
	s.shut()
	s.alone = true
	if err := s.open(); err != nil {
		return nil, err
	}
	return s.upstream.next()
}

// read returns the next elements of the segment.
func (s *Source) read() ([]*tf.Tensor, error) {
	for {
		end := s.Directory.reading.begin()
		chunk, err := s.reader.Next()
		end(chunk.Count, chunk.Size())
		if err != nil {
			return nil, err
		}
		tensors, err := tensorsOf(&chunk, s.reader.Block(), &s.table)
		if err != nil {
			return nil, err
		}
		s.Directory.read.Add(uint64(chunk.Size()))
		if chunk.Flags&keptBack == 0 {
			s.delivered += uint64(chunk.Count)
			return tensors, nil
		}
		s.kept = append(s.kept, tensors)
	}
}

// compute continues with the upstream graph after reading the segment has failed. If that fails too, the next Pull tries
// again from the same position, because any other position would repeat elements.
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
