package cachefill

import (
	"errors"
	"maps"
	"slices"
	"time"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/cache"
	"github.com/pecan-ml/pecan/service/worker/dataset"
)

// mostCommits bounds the segments of a stream that become durable at the same time.
const mostCommits = 2

// commit makes the segment of a part durable and reports it, while the stream computes its next part.
type commit struct {
	// segment and acknowledged are valid after done is closed. They are nil if the segment was dropped. acknowledged is closed
	// when the dispatcher has answered.
	done         chan struct{}
	segment      *pecanv1.CacheSegment
	acknowledged <-chan struct{}
}

// commit begins the commit of the open part's segment. It waits if too many are in progress.
func (s *Source) commit() {
	if s.writer == nil {
		return
	}
	if n := len(s.commits); n >= mostCommits {
		<-s.commits[n-mostCommits].done
	}
	c := &commit{done: make(chan struct{})}
	s.commits = append(s.commits, c)
	writer, name, source := s.writer, s.name, s.source
	names, files := s.Stream.FileNames(s.part()), s.graphs.Files
	s.writer = nil
	s.Directory.Running.Go(func() {
		defer close(c.done)
		// The files must still be those that the elements came from. The tables may have been named before the digest was
		// computed.
		now, err := digest(s.Context, names)
		changed := now != source || !maps.Equal(dataset.FileStates(s.Context, slices.Collect(maps.Keys(files))), files)
		switch {
		case s.Context.Err() != nil:
			s.discard(writer, name, nil)
		case err != nil || changed:
			s.discard(writer, name, errors.Join(errors.New("the source files changed while they were read"), err))
		default:
			s.finish(c, writer, name)
		}
	})
}

// finish makes a segment durable and reports it.
func (s *Source) finish(c *commit, writer *cache.Writer, name string) {
	d := s.Directory
	end := d.writing.begin()
	segment, err := writer.Commit()
	end(0, 0)
	if err != nil {
		d.health.failed(err)
		d.drop(name, err)
		return
	}
	d.health.succeeded()
	c.segment = &pecanv1.CacheSegment{
		Key: segment.Key, Part: segment.Part, Parts: segment.Parts, Name: segment.Name, Bytes: segment.Bytes, Checksum: segment.Checksum, Elements: segment.Elements, Source: segment.Source,
	}
	c.acknowledged = d.report(c.segment)
}

// drop abandons the writing; the elements continue.
func (s *Source) drop(why error) {
	if s.writer == nil {
		return
	}
	s.discard(s.writer, s.name, why)
	s.writer = nil
}

// discard deletes a segment that is not complete.
func (s *Source) discard(writer *cache.Writer, name string, why error) {
	if err := writer.Abort(); err != nil {
		s.Log.Debug("removing an incomplete segment failed", "file", name, "error", err)
	}
	s.Directory.drop(name, why)
}

// AwaitAck waits at the end of the stream for its commits and, for a bounded time, until the dispatcher has acknowledged the
// segments. The next epoch then finds them.
func (s *Source) AwaitAck() {
	s.mu.Lock()
	commits := s.commits
	s.mu.Unlock()
	for _, c := range commits {
		select {
		case <-c.done:
		case <-s.Context.Done():
			return
		}
	}
	timeout := time.NewTimer(s.Directory.AckWait)
	defer timeout.Stop()
	for _, c := range commits {
		if c.segment == nil {
			continue
		}
		select {
		case <-c.acknowledged:
		case <-timeout.C:
			return
		case <-s.Context.Done():
			return
		}
	}
}
