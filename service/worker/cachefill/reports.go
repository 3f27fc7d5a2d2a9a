package cachefill

import (
	"sync"
	"time"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
)

// reports has the finished segments of a Source. The run reports them, because TensorFlow's threads must not use the session.
type reports struct {
	mu sync.Mutex
	// unreported are the segments that no report has named. For each reported segment, acknowledged has a channel that is
	// closed when the dispatcher has answered.
	unreported   []*pecanv1.CacheSegment
	acknowledged []<-chan struct{}
}

func (r *reports) add(segment *pecanv1.CacheSegment) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.unreported = append(r.unreported, segment)
}

// Report reports finished segments to the dispatcher. It does not wait for a Pull in progress.
func (s *Source) Report() {
	r := &s.reports
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, segment := range r.unreported {
		r.acknowledged = append(r.acknowledged, s.Directory.report(segment))
	}
	r.unreported = nil
}

// AwaitAck waits at the end of the stream, for a bounded time, until the dispatcher has acknowledged the segments. The next
// epoch then finds them.
func (s *Source) AwaitAck() {
	s.settle()
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
