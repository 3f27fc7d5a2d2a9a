package epoch

import (
	"time"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
)

// Counters are what an epoch counts for its iteration.
type Counters struct {
	// Duplicates that arrived and were dropped.
	Duplicates uint64
	// Reopened counts streams that were requested again.
	Reopened uint64
}

// Counters returns the counters of the epoch; zero after Retire.
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

// Queued returns the number of elements that are ready.
func (e *Epoch) Queued() (n int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for at := e.streams.ready.Front(); at != nil; at = at.Next() {
		st := at.Value.(*stream)
		for i := range st.queue {
			n += st.queue[i].Remaining()
		}
	}
	return n
}

// Report returns the epoch's part of a heartbeat. It is nil before the dispatcher knows the epoch. After
// Close it is nil unless leaving is set, for an epoch whose close the dispatcher has not received.
func (e *Epoch) Report(leaving bool) *pecanv1.ClientHeartbeatRequest_Pass {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.opened || e.closed && !leaving {
		return nil
	}
	// A trainer that no longer asks does not wait for what is ready.
	starved := e.starved && !leaving && e.pick() == nil
	return &pecanv1.ClientHeartbeatRequest_Pass{
		JobId: e.Consumer.JobID, Epoch: e.id, Starved: starved, Elements: e.dequeued, Bytes: e.dequeuedBytes, WaitedS: e.waitedFor.Seconds(), DuplicatesDropped: e.duplicates,
	}
}

// State is the state of an epoch at one moment.
type State struct {
	// Version is the version of the dispatcher's newest update.
	Version uint64
	// Accepted counts elements that arrived.
	Accepted uint64
	// NoWorkers is set if the epoch waits for a worker.
	NoWorkers bool
	// Streams are the streams of the dispatcher's updates, by number.
	Streams []StreamState
}

// StreamState is the state of one stream at one moment.
type StreamState struct {
	Number uint32
	Lease  uint64
	// Next is the index that is accepted next.
	Next uint64
	// Queued counts entries that wait to be dequeued.
	Queued int
	Ended  bool
	// Parked is set if the stream is not read until its queue is shorter.
	Parked bool
	// Open is set if a channel to a worker is open.
	Open bool
	// Failures in a row, and the last one.
	Failures  int
	LastError error
}

// State returns the present state of the epoch, for tests and diagnosis.
func (e *Epoch) State() State {
	e.mu.Lock()
	defer e.mu.Unlock()
	state := State{Version: e.version, Accepted: e.accepted, NoWorkers: e.noWorkers}
	for number := range e.streams.highest() {
		if st := e.streams.find(number); st != nil {
			state.Streams = append(state.Streams, StreamState{
				Number: st.number, Lease: st.lease, Next: st.next, Queued: len(st.queue), Ended: st.ended, Parked: st.parked, Open: st.receiver != nil,
				Failures: st.failures, LastError: st.lastError,
			})
		} else if e.streams.isPast(number) {
			p := e.streams.past[number]
			state.Streams = append(state.Streams, StreamState{Number: number, Lease: p.lease, Next: p.next, Ended: p.ended})
		}
	}
	return state
}
