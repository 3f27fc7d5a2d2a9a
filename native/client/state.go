package client

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
	Failures int
	Trouble  error
}

// State looks at the epoch, for tests and for people who look for an error.
func (e *epoch) State() State {
	e.mu.Lock()
	defer e.mu.Unlock()
	state := State{Version: e.version, Accepted: e.accepted, NoWorkers: e.noWorkers, Streams: make([]StreamState, len(e.list))}
	for i, st := range e.list {
		state.Streams[i] = StreamState{
			Number: st.number, Lease: st.lease, Next: st.next, Queued: len(st.queue), Ended: st.ended, Parked: st.parked, Open: st.receiver != nil,
			Failures: st.failures, Trouble: st.trouble,
		}
	}
	return state
}
