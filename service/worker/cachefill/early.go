package cachefill

import (
	"errors"
	"slices"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/cache"
)

// mostEarly is the mean size of elements from which on no segment is opened early. Its first block would be as large.
const mostEarly = 4 << 20

// early is the segment of the next part, which is opened while the open part is read. A medium then does not wait between two parts.
type early struct {
	segment *pecanv1.CacheSegment
	// reader and err are valid after done is closed.
	done   chan struct{}
	reader *cache.Reader
	err    error
}

// openEarly begins to open the segment of the part after the open one.
func (s *Source) openEarly() {
	s.dropEarly()
	if s.done+1 == len(s.Stream.Parts) {
		return
	}
	segment := s.recordedOf(s.Stream.Parts[s.done+1])
	if segment == nil || segment.GetBytes() > mostEarly*int64(segment.GetElements()) {
		return
	}
	e := &early{segment: segment, done: make(chan struct{})}
	s.early = e
	s.Directory.Running.Go(func() {
		defer close(e.done)
		e.reader, e.err = s.openSegment(segment)
	})
}

// takeReader returns the reader of the open part's segment. If its early opening has failed, it is opened again.
func (s *Source) takeReader() (*cache.Reader, error) {
	if e := s.early; e != nil && e.segment == s.segment {
		s.early = nil
		if <-e.done; e.err == nil {
			return e.reader, nil
		}
	}
	return s.openSegment(s.segment)
}

// dropEarly closes what was opened early. It does not wait for the directory.
func (s *Source) dropEarly() {
	e := s.early
	if s.early = nil; e == nil {
		return
	}
	s.Directory.Running.Go(func() {
		if <-e.done; e.err == nil {
			_ = e.reader.Close()
		}
	})
}

// openSegment opens a segment, whose source must be the recorded one.
func (s *Source) openSegment(segment *pecanv1.CacheSegment) (*cache.Reader, error) {
	end := s.Directory.reading.begin()
	defer end(0, 0)
	reader, err := s.Directory.dir.Open(cache.Segment{
		Name: segment.GetName(), Bytes: segment.GetBytes(), Checksum: segment.GetChecksum(), Elements: segment.GetElements(),
		ID: cache.ID{Key: s.Action.GetKey(), Part: segment.GetPart(), Parts: s.AllParts, Source: segment.GetSource()},
	}, s.Directory.alloc)
	if err == nil && !slices.Equal(reader.DTypes(), s.dtypes()) {
		return nil, errors.Join(errors.New("its elements have other types"), reader.Close())
	}
	return reader, err
}
