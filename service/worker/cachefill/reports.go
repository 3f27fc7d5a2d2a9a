package cachefill

import (
	"sync"
	"time"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
)

// reports has the finished and the invalid segments of a Source. The run reports them, because TensorFlow's threads must not use
// the session.
type reports struct {
	mu sync.Mutex
	// unreported are the finished segments that no report has named, and invalid are such segments that cannot be used. For
	// each reported finished segment, acknowledged has a channel that is closed when the dispatcher has answered.
	unreported   []*pecanv1.CacheSegment
	invalid      []*pecanv1.CacheSegmentInvalid
	acknowledged []<-chan struct{}
}

func (r *reports) add(segment *pecanv1.CacheSegment) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.unreported = append(r.unreported, segment)
}

// invalidate notes that the segment of the open part cannot be used. The next report names it, unless it may be good.
func (s *Source) invalidate(damaged bool, why error) {
	invalid := s.Directory.invalidate(s.segment, damaged, why)
	if invalid == nil {
		return
	}
	s.reports.mu.Lock()
	defer s.reports.mu.Unlock()
	s.reports.invalid = append(s.reports.invalid, invalid)
}

// Report reports finished and invalid segments to the dispatcher. It does not wait for a Pull in progress.
func (s *Source) Report() {
	r := &s.reports
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, segment := range r.unreported {
		r.acknowledged = append(r.acknowledged, s.Directory.report(segment))
	}
	for _, segment := range r.invalid {
		s.Directory.Send(&pecanv1.WorkerMessage{Kind: &pecanv1.WorkerMessage_CacheSegmentInvalid{CacheSegmentInvalid: segment}})
	}
	r.unreported, r.invalid = nil, nil
}

// AwaitAck waits at the end of the stream, for a bounded time, until the dispatcher has acknowledged the segments. The next
// epoch then finds them.
func (s *Source) AwaitAck() {
	_, _ = s.settle(s.Directory.commitWait)
	s.Report()
	s.reports.mu.Lock()
	acknowledged := s.reports.acknowledged
	s.reports.mu.Unlock()
	timeout := time.NewTimer(s.Directory.AckWait)
	defer timeout.Stop()
	for _, each := range acknowledged {
		select {
		case <-each:
		case <-timeout.C:
			return
		case <-s.Context.Done():
			return
		}
	}
}
