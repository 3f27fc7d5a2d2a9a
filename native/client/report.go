package client

import (
	"time"

	"google.golang.org/protobuf/proto"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
)

// Counters are what an epoch counts for its iteration.
type Counters struct {
	// Duplicates that came and were dropped.
	Duplicates uint64
	// Reopened counts streams that had to be asked for again.
	Reopened uint64
}

// counters are those of the epoch; zero once it is retired.
func (e *epoch) counters() Counters {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.retired {
		return Counters{}
	}
	return Counters{Duplicates: e.duplicates, Reopened: e.reopened}
}

func (e *epoch) addWaited(d time.Duration, starved bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.waitedFor += d
	e.starved = starved
}

func (e *epoch) setStarved(starved bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if starved && !e.starved {
		e.link.RequestHeartbeat()
	}
	e.starved = starved
}

// report is what the heartbeat tells; nil before the dispatcher knows the epoch, and, but for one that it is still to be told of, when it is closed.
func (e *epoch) report(leaving bool) *pecanv1.ClientHeartbeatRequest_Pass {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.opened || e.closed && !leaving {
		return nil
	}
	return &pecanv1.ClientHeartbeatRequest_Pass{
		JobId: e.consumer.JobID, Epoch: e.id, Starved: e.starved && !leaving, Elements: e.taken, Bytes: e.takenBytes, WaitedS: e.waitedFor.Seconds(), DuplicatesDropped: e.duplicates,
	}
}

// number is the epoch's at the dispatcher, 0 before it is known.
func (e *epoch) number() uint64 {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.id
}

// position is the one behind everything that was taken; nil before the epoch is open.
func (e *epoch) position() *pecanv1.Position {
	e.mu.Lock()
	next, opened, turn := map[uint32]uint64{}, e.opened, e.cursor
	for _, st := range e.list {
		next[st.number] = st.nextToTake()
	}
	e.mu.Unlock()
	if !opened {
		return nil
	}
	return e.positionAt(next, turn)
}

// begin is the position in front of everything that the epoch gives.
func (e *epoch) begin() *pecanv1.Position {
	e.mu.Lock()
	defer e.mu.Unlock()
	position := &pecanv1.Position{Epoch: e.id}
	if e.start != nil {
		position = proto.CloneOf(e.start)
	}
	if e.order != nil {
		// Also where it begins at a position that left the order open.
		position.Order = e.order
	}
	return position
}

// positionAt writes down a position in the epoch. Streams that are known to have ended there are marked, so that nobody
// has to run them again to find out.
func (e *epoch) positionAt(next map[uint32]uint64, turn uint32) *pecanv1.Position {
	e.mu.Lock()
	defer e.mu.Unlock()
	position := &pecanv1.Position{Epoch: e.id, Order: e.order}
	if e.options.Deterministic {
		position.Turn = turn
	}
	put := func(stream uint32, index uint64) {
		for uint32(len(position.Next)) <= stream {
			position.Next = append(position.Next, 0)
		}
		position.Next[stream] = index
	}
	for stream, index := range next {
		if index > 0 {
			put(stream, index)
		}
	}
	for _, st := range e.list {
		if st.counted && next[st.number] == st.count {
			position.Ended = append(position.Ended, st.number)
		}
	}
	return position
}
