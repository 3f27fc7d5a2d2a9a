package core_test

import (
	"fmt"
	"math/rand/v2"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/dispatcher/core"
)

// newWorker starts a remote worker, if no provider does that.
func (s *sim) newWorker() {
	if !s.provided() {
		s.startWorker("")
	}
}

// startWorker starts a local worker of a trainer, or a remote one.
func (s *sim) startWorker(trainer string) {
	w := &simWorker{id: fmt.Sprint("w", s.newID()), held: map[string]*simHeld{}, trainer: trainer}
	s.workers[w.id] = w
	s.hello(w)
}

func (s *sim) hello(w *simWorker) {
	w.session, w.askedToLeave = core.SessionID(s.newID()), false
	s.sessions[w.session] = w
	hello := &pecanv1.WorkerHello{Address: &pecanv1.WorkerAddress{WorkerId: w.id, Tcp: w.id + ":1"}, MaxStreams: 2}
	if w.trainer != "" {
		hello.Kind, hello.TrainerId, hello.Address.HostId = "local", w.trainer, "host"
		if s.placing.loopback {
			hello.Address.Tcp = "127.0.0.1:" + w.id[1:]
		}
	}
	for _, key := range sorted(w.held) {
		h := w.held[key]
		hello.Held = append(hello.Held, &pecanv1.HeldStream{Id: h.id, Lease: h.lease, Ended: h.ended, Count: h.count, RemainderRows: h.row})
	}
	if _, err := s.feed(core.Hello{Session: w.session, Message: hello}); err != nil {
		s.t.Fatalf("hello: %v", err)
	}
}

// killWorker removes a worker with all that it holds.
func (s *sim) killWorker() {
	if w, ok := pickOne(s, s.sortedWorkers()); ok && (!s.healing || len(s.workers) > 1) {
		s.loseWorker(w)
	}
}

func (s *sim) loseWorker(w *simWorker) {
	delete(s.workers, w.id)
	s.breakSession(w)
}

// leaveWorker lets a worker leave in good order. Drained streams move first.
func (s *sim) leaveWorker() {
	w, ok := pickOne(s, s.sortedWorkers())
	if !ok || !s.live(w) || s.healing && len(s.workers) == 1 {
		return
	}
	s.leaving(w, s.leavingLoads(w, s.rng))
	s.goodbye(w)
}

// leavingLoads returns what a leaving worker reports of its streams. Some of them are drained.
func (s *sim) leavingLoads(w *simWorker, rng *rand.Rand) (loads []*pecanv1.WorkerHeartbeat_StreamLoad) {
	for _, key := range sorted(w.held) {
		h := w.held[key]
		loads = append(loads, &pecanv1.WorkerHeartbeat_StreamLoad{
			Id: h.id, Lease: h.lease, Produced: h.acked, Acked: h.acked, Unread: !h.read, Opened: true,
			Drained: !h.ended && rng.IntN(2) == 0 && (!h.read || s.mode != pecanv1.Mode_MODE_AT_MOST_ONCE),
		})
	}
	return loads
}

func (s *sim) leaving(w *simWorker, loads []*pecanv1.WorkerHeartbeat_StreamLoad) {
	heartbeat := &pecanv1.WorkerHeartbeat{Leaving: true, Streams: pecanv1.PackLoads(loads)}
	s.feed(core.FromWorker{Session: w.session, Message: &pecanv1.WorkerMessage{Kind: &pecanv1.WorkerMessage_Heartbeat{Heartbeat: heartbeat}}})
}

func (s *sim) goodbye(w *simWorker) {
	delete(s.workers, w.id)
	s.feed(core.FromWorker{Session: w.session, Message: &pecanv1.WorkerMessage{Kind: &pecanv1.WorkerMessage_Goodbye{Goodbye: &pecanv1.WorkerGoodbye{}}}})
}

func (s *sim) breakSession(w *simWorker) {
	session := w.session
	delete(s.sessions, session)
	s.feed(core.SessionEnded{Session: session})
}

// hangUp breaks a connection. The worker returns at its next turn.
func (s *sim) hangUp() {
	if w, ok := pickOne(s, s.sortedWorkers()); ok && s.live(w) {
		s.breakSession(w)
	}
}

func (s *sim) workerHeartbeat(w *simWorker) {
	var loads []*pecanv1.WorkerHeartbeat_StreamLoad
	for _, key := range sorted(w.held) {
		h := w.held[key]
		loads = append(loads, &pecanv1.WorkerHeartbeat_StreamLoad{Id: h.id, Lease: h.lease, Produced: h.count, Acked: h.acked, Opened: true})
	}
	heartbeat := &pecanv1.WorkerHeartbeat{Streams: pecanv1.PackLoads(loads)}
	if s.placing != nil {
		heartbeat.UptimeS, heartbeat.ComputedS = 1+s.now.Seconds(), s.now.Seconds()/2
	}
	s.feed(core.FromWorker{Session: w.session, Message: &pecanv1.WorkerMessage{Kind: &pecanv1.WorkerMessage_Heartbeat{Heartbeat: heartbeat}}})
}

// workerMarks lets a worker compute an element of each guarded run, one of those at the last death exclusive.
func (s *sim) workerMarks(w *simWorker) {
	exclusive := false
	for _, key := range sorted(w.held) {
		h := w.held[key]
		guard := h.start.GetCrashGuard()
		if guard == nil || h.ended || h.count == 0 {
			continue
		}
		next := uint64(s.rng.IntN(int(h.count)))
		mark := &pecanv1.MarkElementsRequest{WorkerId: w.id, Id: h.id, Lease: h.lease, First: next, Below: next + 1 + uint64(s.rng.IntN(4))}
		if guard.First <= next && next < guard.Below {
			if exclusive {
				continue
			}
			exclusive = true
			mark.Below, mark.Exclusive = next+1, true
		} else if next < guard.First {
			mark.Below = min(mark.Below, guard.First)
		}
		mark.ReadAhead = !guard.Serial && next%2 == 0
		s.feed(mark)
		if mark.ReadAhead && next%4 == 0 {
			// The stream waits, and its steps continue.
			s.feed(&pecanv1.MarkElementsRequest{WorkerId: w.id, Id: h.id, Lease: h.lease, First: mark.Below, Below: mark.Below, ReadAhead: true})
		}
	}
}

// workerProduces lets a worker end a stream. A worker without connection returns.
func (s *sim) workerProduces() {
	w, ok := pickOne(s, s.sortedWorkers())
	if !ok {
		return
	}
	if !s.live(w) {
		s.hello(w)
		return
	}
	for _, key := range sorted(w.held) {
		h := w.held[key]
		if h == nil || h.ended || !s.sourcesReady(h) || s.rng.IntN(2) == 0 {
			continue
		}
		h.ended = true
		s.join(h)
		if s.lists {
			s.feed(core.FromWorker{Session: w.session, Message: &pecanv1.WorkerMessage{Kind: &pecanv1.WorkerMessage_StreamsEnded{StreamsEnded: &pecanv1.StreamsEnded{
				JobId: h.id.JobId, Epoch: h.id.Epoch, Streams: []int64{int64(h.id.Stream)}, Leases: []int64{int64(h.lease)}, Counts: []uint64{h.count}, RemainderRows: []uint64{h.row},
			}}}})
		} else {
			s.feed(core.FromWorker{Session: w.session, Message: &pecanv1.WorkerMessage{Kind: &pecanv1.WorkerMessage_Ended{Ended: &pecanv1.StreamEnded{
				Id: h.id, Lease: h.lease, Count: h.count, RemainderRows: h.row,
			}}}})
		}
		if s.plan.NumStreams <= 4 {
			return
		}
	}
}

// sourcesReady reports whether a closing stream can fetch what it joins.
func (s *sim) sourcesReady(h *simHeld) bool {
	for _, source := range h.start.Remainders {
		if !source.Ready {
			return false
		}
		if source.Rows == 0 {
			continue
		}
		id := &pecanv1.StreamId{JobId: h.id.JobId, Epoch: h.id.Epoch - source.EpochsBefore, Stream: source.Stream}
		w := s.workers[source.Worker.GetWorkerId()]
		if w == nil || w.held[showID(id)] == nil || w.held[showID(id)].lease != source.Lease {
			return false
		}
	}
	return true
}
