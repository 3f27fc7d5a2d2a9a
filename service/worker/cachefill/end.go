package cachefill

import "github.com/pecan-ml/pecan/native/tf"

// endPart closes the open part after its last element. What the part holds back is the end of its segment.
func (s *Source) endPart() {
	held := s.held
	if s.held = nil; s.upstream != nil {
		held = s.from.HeldBack()
		for _, batch := range held {
			chunk := asElement(batch).chunk
			chunk.Flags |= heldBack
			s.write(&chunk)
		}
	}
	s.commit()
	s.closePart()
	for _, batch := range held {
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
	for _, batch := range s.held {
		tf.ReleaseAll(batch)
	}
	if s.held = nil; s.reader != nil {
		_ = s.reader.Close()
		s.reader = nil
	}
}

// Close frees what is open. A segment that has not all elements is discarded.
func (s *Source) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	s.drop(nil)
	s.closePart()
	s.dropEarly()
}
