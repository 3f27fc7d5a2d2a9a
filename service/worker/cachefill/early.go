package cachefill

import (
	"errors"
	"slices"
	"sync"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/cache"
)

// mostEarly is the mean size of elements from which on no segment is opened early. Its first block would be as large.
const mostEarly = 4 << 20

// early is the segment of the next part, which is opened while the open part is read. A medium then does not wait between two parts.
// The opening in progress holds mu.
type early struct {
	mu      sync.Mutex
	segment *pecanv1.CacheSegment
	reader  *cache.Reader
}

// openEarly begins to open the segment of the part after the open one.
func (s *Source) openEarly() {
	if s.done+1 == len(s.Stream.Parts) {
		return
	}
	segment := s.recordedOf(s.Stream.Parts[s.done+1])
	if segment == nil || segment.GetBytes() > mostEarly*int64(segment.GetElements()) {
		return
	}
	s.early.mu.Lock()
	s.early.segment = segment
	go func() {
		defer s.early.mu.Unlock()
		s.early.reader, _ = s.openSegment(segment)
	}()
}

// takeEarly returns the reader of a segment if it was opened early, and nil otherwise. It closes the reader of another segment.
func (s *Source) takeEarly(segment *pecanv1.CacheSegment) *cache.Reader {
	s.early.mu.Lock()
	defer s.early.mu.Unlock()
	reader := s.early.reader
	s.early.reader = nil
	if reader != nil && s.early.segment != segment {
		_ = reader.Close()
		return nil
	}
	return reader
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
