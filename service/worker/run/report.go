package run

import (
	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/proto/reason"
)

// ReportMetrics queues the new metrics of all jobs for the dispatcher.
func (ss *Streams) ReportMetrics() {
	for _, job := range ss.Totals.Jobs() {
		ss.reportJob(job)
	}
}

// reportJob queues the new metrics of a job for the dispatcher.
func (ss *Streams) reportJob(job string) {
	if metrics := ss.Totals.Unreported(job); metrics != nil {
		ss.Dispatcher.Send(&pecanv1.WorkerMessage{Kind: &pecanv1.WorkerMessage_Metrics{Metrics: metrics}})
	}
}

// moreOf reports whether another stream of the same epoch is held and has not ended. Its end, or the next heartbeat,
// sends the metrics of both.
func (ss *Streams) moreOf(s *Stream) bool {
	for _, other := range ss.held() {
		if other != s && other.key.Job == s.key.Job && other.key.Epoch == s.key.Epoch && !other.over() {
			return true
		}
	}
	return false
}

// over reports whether the stream's run has ended or failed.
func (s *Stream) over() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.run == nil {
		return false
	}
	state := s.run.state()
	return state.ended || state.failed != nil
}

// report returns what the dispatcher needs to know of the stream: that it started, and its result.
func (s *Stream) report() []*pecanv1.WorkerMessage {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.run == nil {
		return nil
	}
	state, id := s.run.state(), s.key.ID()
	var out []*pecanv1.WorkerMessage
	if state.started {
		out = append(out, &pecanv1.WorkerMessage{Kind: &pecanv1.WorkerMessage_Started{Started: &pecanv1.StreamStarted{Id: id, Lease: s.lease}}})
	}
	switch {
	case state.failed != nil:
		out = append(out, s.failure(state.failed, false))
	case s.belowWindow != nil:
		out = append(out, s.failure(s.belowWindow, true))
	case state.ended:
		out = append(out, &pecanv1.WorkerMessage{Kind: &pecanv1.WorkerMessage_Ended{Ended: &pecanv1.StreamEnded{
			Id: id, Lease: s.lease, Count: state.count, RemainderRows: state.remainderRows}}})
	}
	return out
}

func (s *Stream) failure(why *reason.Error, gone bool) *pecanv1.WorkerMessage {
	return &pecanv1.WorkerMessage{Kind: &pecanv1.WorkerMessage_Failed{Failed: &pecanv1.StreamFailed{Id: s.key.ID(), Lease: s.lease, Error: why.Detail(), BelowWindow: gone}}}
}

// held returns the stream as a hello reports it.
func (s *Stream) held() *pecanv1.HeldStream {
	s.mu.Lock()
	defer s.mu.Unlock()
	held := &pecanv1.HeldStream{Id: s.key.ID(), Lease: s.lease}
	if s.run != nil {
		state := s.run.state()
		held.Ended, held.Count, held.RemainderRows = state.ended, state.count, state.remainderRows
	}
	return held
}

// load returns the stream as a heartbeat reports it.
func (s *Stream) load() *pecanv1.WorkerHeartbeat_StreamLoad {
	s.mu.Lock()
	lease, run, resting, read := s.lease, s.run, s.drained, s.read
	s.mu.Unlock()
	if run == nil {
		return nil
	}
	produced, acked, bytes := run.window.Load()
	run.saver.noteReported(acked)
	return &pecanv1.WorkerHeartbeat_StreamLoad{
		Id: s.key.ID(), Lease: lease, Produced: produced, Acked: acked, WindowBytes: bytes, CleanBelow: run.window.CleanBelow(),
		Drained: resting, Unread: !read, Opened: run.state().started,
	}
}

// report sends the state of a stream to the dispatcher.
func (ss *Streams) report(s *Stream) { ss.Dispatcher.Send(s.report()...) }

// Loads returns the streams that the worker runs, as a heartbeat reports them.
func (ss *Streams) Loads() (loads []*pecanv1.WorkerHeartbeat_StreamLoad) {
	for _, s := range ss.held() {
		if load := s.load(); load != nil {
			loads = append(loads, load)
		}
	}
	return loads
}
