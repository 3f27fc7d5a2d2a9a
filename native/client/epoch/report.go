package epoch

import (
	"time"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
)

// Counters are what an epoch counts for its iteration.
type Counters struct {
	// Duplicates that came and were dropped.
	Duplicates uint64
	// Reopened counts streams that had to be asked for again.
	Reopened uint64
}

// Counters are those of the epoch; zero once it is retired.
func (e *Epoch) Counters() Counters {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.retired {
		return Counters{}
	}
	return Counters{Duplicates: e.duplicates, Reopened: e.reopened}
}

func (e *Epoch) AddWaited(d time.Duration, starved bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.waitedFor += d
	e.starved = starved
}

func (e *Epoch) SetStarved(starved bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if starved && !e.starved {
		e.link.RequestHeartbeat()
	}
	e.starved = starved
}

// Report is what the heartbeat tells; nil before the dispatcher knows the epoch, and, but for one that it is still to be told of, when it is closed.
func (e *Epoch) Report(leaving bool) *pecanv1.ClientHeartbeatRequest_Pass {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.opened || e.closed && !leaving {
		return nil
	}
	return &pecanv1.ClientHeartbeatRequest_Pass{
		JobId: e.Consumer.JobID, Epoch: e.id, Starved: e.starved && !leaving, Elements: e.dequeued, Bytes: e.dequeuedBytes, WaitedS: e.waitedFor.Seconds(), DuplicatesDropped: e.duplicates,
	}
}

// State is what an epoch has at one moment.
type State struct {
	// Version is that of the newest snapshot of the dispatcher.
	Version uint64
	// Accepted counts elements that arrived.
	Accepted uint64
	// NoWorkers: what is waited for is a worker.
	NoWorkers bool
	// Streams are those that the dispatcher told of, by number.
	Streams []StreamState
}

// StreamState is what an epoch has of one stream.
type StreamState struct {
	Number uint32
	Lease  uint64
	// Next is the index that is accepted next.
	Next uint64
	// Queued frames and failed elements wait to be taken.
	Queued int
	Ended  bool
	// Parked: it is not read until the queue is shorter.
	Parked bool
	// Open: a channel to a worker is open.
	Open bool
	// Failures in a row, and the last one.
	Failures  int
	LastError error
}

// State looks at the epoch, for tests and for people who look for an error.
func (e *Epoch) State() State {
	e.mu.Lock()
	defer e.mu.Unlock()
	state := State{Version: e.version, Accepted: e.accepted, NoWorkers: e.noWorkers, Streams: make([]StreamState, len(e.list))}
	for i, st := range e.list {
		state.Streams[i] = StreamState{
			Number: st.number, Lease: st.lease, Next: st.next, Queued: len(st.queue), Ended: st.ended, Parked: st.parked, Open: st.receiver != nil,
			Failures: st.failures, LastError: st.lastError,
		}
	}
	return state
}
