package cachefill

import (
	"errors"
	"time"

	"github.com/pecan-ml/pecan/native/tf"
	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/cache"
	"github.com/pecan-ml/pecan/service/worker/dataset"
)

// endPart closes the open part after its last element. What the part keeps back is the end of its segment.
func (s *Source) endPart() {
	kept := s.kept
	if s.kept = nil; s.upstream != nil {
		s.Directory.follower.computed(s.Action.GetKey(), s.computing)
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

// commit is a segment that is being made durable in the background.
type commit struct {
	// written is closed when the data is written, at the time began. A limit of the writing speed delays it, which is no sign of a slow
	// directory. over is closed at the end. In a simulation, a wait for these channels stops the simulated time, because a thread
	// of TensorFlow makes them.
	written, over chan struct{}
	began         time.Time
}

var (
	errBehind   = errors.New("an earlier segment is not durable yet: the directory is slower than the stream")
	errNoAnswer = errors.New("the directory has not answered in time, and was not measured since")
)

// late returns whether the commit takes longer than most. nil is never late.
func (c *commit) late(most time.Duration) bool {
	if c == nil {
		return false
	}
	select {
	case <-c.over:
		return false
	default:
	}
	select {
	case <-c.written:
		return time.Since(c.began) >= most
	default:
		return false
	}
}

// settle waits for the newest commit, until its data has been written for commitWait or the run is stopped. After its data was written,
// it waits at most for a time. It returns whether the commit is over, and how much of that time has passed.
func (s *Source) settle(most time.Duration) (over bool, waited time.Duration) {
	last := s.committing.Load()
	if last == nil {
		return true, 0
	}
	select {
	case <-last.written:
	case <-s.Context.Done():
		return false, 0
	}
	began := time.Now()
	timer := time.NewTimer(min(most, s.Directory.commitWait-time.Since(last.began)))
	defer timer.Stop()
	select {
	case <-last.over:
		over = true
	case <-timer.C:
	case <-s.Context.Done():
	}
	return over, time.Since(began)
}

// behind returns why no segment is begun now; nil if one may be begun. The next part would wait for the directory, too.
func (s *Source) behind() error {
	switch {
	case !s.Directory.health.answers():
		return errNoAnswer
	case s.committing.Load().late(s.Directory.commitWait):
		return errBehind
	}
	return nil
}

// commit begins to make the segment durable, while the stream computes its next part. It waits for the commit before it, but for no
// longer than commitWait in all parts of the stream. Then the segment is discarded: a slow directory must not slow down the stream.
func (s *Source) commit() {
	if s.writer == nil {
		return
	}
	settled, waited := s.settle(s.Directory.commitWait - s.settling)
	if s.settling += waited; !settled {
		writer, name, why := s.writer, s.name, errBehind
		if s.writer = nil; s.Context.Err() != nil {
			why = nil
		}
		// A mounted bucket may upload the file when it is closed.
		s.Directory.Running.Go(func() { s.discard(writer, name, why) })
		return
	}
	now := &commit{written: make(chan struct{}), over: make(chan struct{})}
	s.committing.Store(now)
	writer, name, source, names, files := s.writer, s.name, s.source, s.Stream.FileNames(s.part()), s.graphs.Files
	s.writer = nil
	go func() {
		defer close(now.over)
		end := s.Directory.writing.begin()
		unwritten := writer.Finish()
		end(0, 0)
		now.began = time.Now()
		close(now.written)
		var changed error
		if unwritten == nil {
			// The files must still be those that the elements came from. The tables may have been named before the digest was
			// computed.
			found, err := digest(s.Context, names)
			if err != nil || found != source || !dataset.Unchanged(s.Context, files) {
				changed = errors.Join(errors.New("the source files changed while they were read"), err)
			}
		}
		switch {
		case s.Context.Err() != nil:
			s.discard(writer, name, nil)
		case unwritten != nil:
			s.Directory.health.failed(unwritten)
			s.discard(writer, name, unwritten)
		case changed != nil:
			s.discard(writer, name, changed)
		default:
			s.finish(writer, name)
		}
	}()
}

// finish makes a segment durable and ready to report.
func (s *Source) finish(writer *cache.Writer, name string) {
	d := s.Directory
	end := d.writing.begin()
	segment, err := writer.Commit()
	end(0, 0)
	if err != nil {
		d.health.failed(err)
		d.drop(name, err)
		return
	}
	d.health.succeeded(segment.Bytes)
	s.reports.add(&pecanv1.CacheSegment{
		Key: segment.Key, Part: segment.Part, Parts: segment.Parts, Name: segment.Name, Bytes: segment.Bytes, Checksum: segment.Checksum, Elements: segment.Elements, Source: segment.Source,
	})
}

// drop abandons the writing; the elements continue.
func (s *Source) drop(why error) {
	if s.writer != nil {
		s.discard(s.writer, s.name, why)
		s.writer = nil
	}
}

// discard deletes the file of a segment that is not complete.
func (s *Source) discard(writer *cache.Writer, name string, why error) {
	if err := writer.Abort(); err != nil {
		s.Log.Debug("removing an incomplete segment failed", "file", name, "error", err)
	}
	s.Directory.drop(name, why)
}

// Close frees what is open. A segment that is not complete is discarded. One that is durable only later is reported then.
func (s *Source) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	s.drop(nil)
	s.closePart()
	_ = s.takeEarly(nil)
	if over, _ := s.settle(s.Directory.commitWait); over {
		s.Report()
		return
	}
	s.Directory.Running.Go(func() {
		<-s.committing.Load().over
		s.Report()
	})
}
