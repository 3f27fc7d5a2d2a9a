package cachefill

import (
	"errors"
	"maps"
	"slices"

	"github.com/pecan-ml/pecan/native/tf"
	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/worker/dataset"
)

// endPart closes the open part after its last element. What the part keeps back is the end of its segment.
func (s *Source) endPart() {
	kept := s.kept
	if s.kept = nil; s.upstream != nil {
		kept = s.from.KeptBack()
		for _, batch := range kept {
			chunk := asElement(batch).chunk
			chunk.Flags |= keptBack
			s.write(&chunk)
		}
	}
	s.commit()
	s.closePart()
	for _, batch := range kept {
		s.KeepRemainder(batch)
	}
	s.begun = false
	s.done++
}

// closePart frees what is open of a part.
func (s *Source) closePart() {
	s.closeReader()
	s.shut()
}

// closeReader closes the segment that is read.
func (s *Source) closeReader() {
	for _, batch := range s.kept {
		tf.ReleaseAll(batch)
	}
	if s.kept = nil; s.reader != nil {
		_ = s.reader.Close()
		s.reader = nil
	}
}

// commit makes the segment durable and ready to report. The files must still be those that the elements came
// from.
func (s *Source) commit() {
	if s.writer == nil {
		return
	}
	writer := s.writer
	if now, err := s.digest(); err != nil || now != s.source || s.tablesChanged() {
		s.drop(errors.Join(errors.New("the source files changed while they were read"), err))
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
	s.reports.add(&pecanv1.CacheSegment{
		Key: segment.Key, Part: segment.Part, Parts: segment.Parts, Name: segment.Name, Bytes: segment.Bytes, Checksum: segment.Checksum, Elements: segment.Elements, Source: segment.Source,
	})
}

// tablesChanged reports whether a file has changed since the graphs' tables were named. The tables may have been named before
// the digest was computed.
func (s *Source) tablesChanged() bool {
	return !maps.Equal(dataset.FileStates(s.Context, slices.Collect(maps.Keys(s.graphs.Files))), s.graphs.Files)
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

// Close frees what is open. A segment that is not complete is discarded.
func (s *Source) Close() {
	s.Report()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	s.drop(nil)
	s.closePart()
	_ = s.takeEarly(nil)
}
