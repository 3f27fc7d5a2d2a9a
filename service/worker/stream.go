package worker

import (
	"log/slog"
	"sync"

	"github.com/pecan-ml/pecan/proto/reason"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/graph/split"
)

// streamKey names a stream.
type streamKey struct {
	job    string
	epoch  uint64
	stream uint32
}

func keyOf(id *pecanv1.StreamId) streamKey {
	return streamKey{id.GetJobId(), id.GetEpoch(), id.GetStream()}
}

func (k streamKey) id() *pecanv1.StreamId {
	return &pecanv1.StreamId{JobId: k.job, Epoch: k.epoch, Stream: k.stream}
}

// stream is one leased stream. It stays until the dispatcher takes it back, also after its end: its last elements may not
// have arrived, and its remainder may be asked for.
type stream struct {
	worker *Worker
	key    streamKey
	log    *slog.Logger

	mu    sync.Mutex
	lease uint64
	// order is the newest StartStream.
	order *pecanv1.StartStream
	run   *run
	// kept is what is held back for the closing stream; nil when the plan has none.
	kept    *window
	stopped bool
	// read: somebody has opened it, under whatever lease. resting: the worker leaves, and has nothing more to do for it.
	read, resting bool
	// gone says what a reader wanted that is no longer held and cannot be made again; nil while that has not happened.
	gone *reason.Error
	// changed is closed and replaced whenever order changes.
	changed chan struct{}
}

func newStream(w *Worker, order *pecanv1.StartStream) *stream {
	s := &stream{worker: w, key: keyOf(order.GetId()), lease: order.GetLease(), order: order, changed: make(chan struct{})}
	s.log = w.log.With("job", s.key.job, "epoch", s.key.epoch, "stream", s.key.stream)
	return s
}

// keepsBack tells whether a short last batch of this stream belongs to the closing stream.
func keepsBack(order *pecanv1.StartStream) bool {
	way := order.GetPlan().GetBatchStrategy()
	return !order.GetClosing() && (way == pecanv1.BatchStrategy_BATCH_STRATEGY_REMAINDER || way == pecanv1.BatchStrategy_BATCH_STRATEGY_CLOSING)
}

// update takes a newer StartStream of the same stream over. A newer lease for a stream that runs well changes nothing in
// what it produces, so the run and its window stay.
func (s *stream) update(order *pecanv1.StartStream) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped || order.GetLease() < s.lease {
		return
	}
	again := order.GetLease() > s.lease
	s.lease, s.order = order.GetLease(), order
	close(s.changed)
	s.changed = make(chan struct{})
	if s.run.state().failed != nil || s.gone != nil && again {
		s.gone = nil
		s.restart(reason.New(reason.StaleLease, "stream %d was leased again", s.key.stream), s.told())
		return
	}
	s.run.window.setAhead(order.GetPrefetch())
}

// restart runs the stream again and tells its readers why. The caller holds mu.
func (s *stream) restart(why *reason.Error, at beginning) {
	s.quit(why)
	if keepsBack(s.order) {
		s.kept = newWindow(&s.worker.windowBytes, nil)
		s.kept.keep = true
	}
	s.run = newRun(s, at)
	s.worker.running.Go(s.run.main)
}

// quit ends the run and tells its readers why. The caller holds mu.
func (s *stream) quit(why *reason.Error) {
	var readers []*channel
	if s.run != nil {
		readers = append(readers, s.run.stop())
	}
	if s.kept != nil {
		readers = append(readers, s.kept.close())
	}
	for _, reader := range readers {
		if reader != nil {
			reader.conn.refuse(reader, why)
		}
	}
}

// keeper gives where r keeps short batches; nil when nothing is to be kept or r is no longer the stream's run.
func (s *stream) keeper(r *run) *window {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.run != r || s.stopped {
		return nil
	}
	return s.kept
}

func (s *stream) begin() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.stopped {
		s.restart(nil, s.told())
	}
}

// current gives the newest order and a channel that is closed when there is a newer one.
func (s *stream) current() (*pecanv1.StartStream, <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.order, s.changed
}

// attach makes c the reader of the stream, unless it was asked for before the one there is: OPENs look for their stream side by
// side, and one that is late may be of a connection that was given up. A run that no longer holds the index start begins anew, and
// so does one that has a long way to it. No element below clean has failed. Where another run may give other elements none begins: the
// dispatcher is told, which gives the stream up or has it sent from its start.
func (s *stream) attach(c *channel, start, clean uint64) *reason.Error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped {
		return reason.New(reason.StreamUnknown, "stream %d was taken from worker %s", s.key.stream, s.worker.describe())
	}
	if c.lease < s.lease {
		return reason.New(reason.StaleLease, "lease %d of stream %d is over, worker %s holds lease %d", c.lease, s.key.stream, s.worker.describe(), s.lease)
	}
	target := s.run.window
	if c.remainder {
		if s.kept == nil {
			return reason.New(reason.BadArgument, "stream %d keeps nothing back", s.key.stream)
		}
		target = s.kept
	}
	// Before anything else: it must not end what another reads.
	if target.newerReader(c) {
		return reason.New(reason.Closed, "another reader opened stream %d", s.key.stream)
	}
	if s.gone == nil && !c.remainder && !split.IsRepeatable(s.order.GetPlan()) && !s.run.window.holds(start) {
		s.gone = reason.New(reason.StaleLease, "stream %d no longer has element %d, and another run may have another one there", s.key.stream, start)
		s.log.Info("the stream cannot go on: the elements that the reader wants are no longer held", "start_index", start)
		s.worker.session.send(s.failure(s.gone, true))
	}
	if s.gone != nil {
		return s.gone
	}
	c.bind(target)
	s.read, s.resting = true, false
	begin := s.beginning(start, max(clean, s.run.window.cleanBelow()))
	far := !c.remainder && s.run.isFar(begin.start)
	var old *channel
	ok := false
	if !far {
		old, ok = target.attach(c, start)
	}
	if !ok {
		s.log.Info("run the stream again: the elements that the reader wants are no longer held, or far ahead", "start_index", start, "from", begin.start)
		s.restart(reason.New(reason.Closed, "stream %d begins again for another reader", s.key.stream), begin)
		c.bind(s.run.window)
		s.run.window.attach(c, start)
	}
	if old != nil && old != c {
		old.conn.refuse(old, reason.New(reason.Closed, "another reader opened stream %d", s.key.stream))
	}
	return nil
}

// stop ends the stream for good, and tells its readers.
func (s *stream) stop(why *reason.Error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped {
		return
	}
	s.stopped = true
	close(s.changed)
	s.changed = make(chan struct{})
	s.quit(why)
}

// closed is for a stream that was stopped; it is closed when nothing of it is open any more.
func (s *stream) closed() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.run == nil {
		nothing := make(chan struct{})
		close(nothing)
		return nothing
	}
	return s.run.done
}

// report gives what the dispatcher has to know of the stream: that it started, and how it came out.
func (s *stream) report() []*pecanv1.WorkerMessage {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.run == nil {
		return nil
	}
	state, id := s.run.state(), s.key.id()
	var out []*pecanv1.WorkerMessage
	if state.started {
		out = append(out, &pecanv1.WorkerMessage{Kind: &pecanv1.WorkerMessage_Started{Started: &pecanv1.StreamStarted{Id: id, Lease: s.lease}}})
	}
	switch {
	case state.failed != nil:
		out = append(out, s.failure(state.failed, false))
	case s.gone != nil:
		out = append(out, s.failure(s.gone, true))
	case state.ended:
		out = append(out, &pecanv1.WorkerMessage{Kind: &pecanv1.WorkerMessage_Ended{Ended: &pecanv1.StreamEnded{
			Id: id, Lease: s.lease, Count: state.count, RemainderRows: state.keptRows}}})
	}
	return out
}

func (s *stream) failure(why *reason.Error, gone bool) *pecanv1.WorkerMessage {
	return &pecanv1.WorkerMessage{Kind: &pecanv1.WorkerMessage_Failed{Failed: &pecanv1.StreamFailed{Id: s.key.id(), Lease: s.lease, Error: why.Detail(), BelowWindow: gone}}}
}

// held is the stream as a hello tells it.
func (s *stream) held() *pecanv1.HeldStream {
	s.mu.Lock()
	defer s.mu.Unlock()
	held := &pecanv1.HeldStream{Id: s.key.id(), Lease: s.lease}
	if s.run != nil {
		state := s.run.state()
		held.Ended, held.Count, held.RemainderRows = state.ended, state.count, state.keptRows
	}
	return held
}

// load is the stream as a heartbeat tells it.
func (s *stream) load() *pecanv1.WorkerHeartbeat_StreamLoad {
	s.mu.Lock()
	lease, run, resting, read := s.lease, s.run, s.resting, s.read
	s.mu.Unlock()
	if run == nil {
		return nil
	}
	produced, acked, bytes := run.window.load()
	run.saver.tell(acked)
	return &pecanv1.WorkerHeartbeat_StreamLoad{
		Id: s.key.id(), Lease: lease, Produced: produced, Acked: acked, WindowBytes: bytes, CleanBelow: run.window.cleanBelow(),
		Drained: resting, Unread: !read, Opened: run.state().started,
	}
}

func (s *stream) leaseNow() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lease
}

func (s *stream) leaseAndChange() (uint64, <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lease, s.changed
}
