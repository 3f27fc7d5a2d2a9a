package durable

import (
	"cmp"
	"maps"
	"slices"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
)

// Ref names an active stream.
type Ref struct {
	Epoch  *Epoch
	Stream uint32
}

// change changes a stream, which becomes active. It keeps all sums and indexes.
func (s *State) change(e *Epoch, number uint32, do func(*pecanv1.StoredStream)) {
	s.put(e, number, do)
	s.settle(e, e.active[number])
	if last, exists := e.Job.Plan.LastClosing(); exists && number == last && e.delivered.has(last) {
		// It joined rows of earlier epochs.
		s.settleCarry(e.Job)
	}
}

// put is change without settling the stream.
func (s *State) put(e *Epoch, number uint32, do func(*pecanv1.StoredStream)) {
	stream := e.active[number]
	if stream == nil {
		stream = e.Stream(number)
		e.active[number] = stream
	} else {
		e.count(stream, -1)
		s.index(e, stream, false)
	}
	do(stream)
	e.count(stream, 1)
	e.delivered.set(number, stream.Delivered)
	e.truncated.set(number, stream.Truncated)
	s.index(e, stream, true)
}

// settle ends the entry of a stream that nobody needs and no worker holds. With a closing stream it ends the entries of
// those that it joined.
func (s *State) settle(e *Epoch, stream *pecanv1.StoredStream) {
	if e.total <= wholeStreams || !e.Settles(stream) {
		return
	}
	for _, source := range e.kept(stream.Stream) {
		s.settle(e, source)
	}
	if stream.Worker != nil {
		return
	}
	// The sums keep what the stream delivered.
	delivered, elements, lost, truncated := e.sums.delivered, e.sums.elements, e.sums.lost, e.sums.truncated
	e.count(stream, -1)
	e.sums.delivered, e.sums.elements, e.sums.lost, e.sums.truncated = delivered, elements, lost, truncated
	s.index(e, stream, false)
	delete(e.active, stream.Stream)
}

// kept returns the active streams that a closing stream joins; none for another stream.
func (e *Epoch) kept(closing uint32) (list []*pecanv1.StoredStream) {
	if !e.Job.Plan.IsClosing(closing) {
		return nil
	}
	first, below := e.Sources(closing)
	for source := first; source < below; source++ {
		if stream := e.active[source]; stream != nil {
			list = append(list, stream)
		}
	}
	return list
}

// index enters a stream into the indexes of leases and idle streams, or removes it.
func (s *State) index(e *Epoch, stream *pecanv1.StoredStream, enter bool) {
	if idle := enter && stream.Worker == nil && !stream.Truncated; idle || len(e.idle) > 0 {
		e.idle = e.idle.resized(e.total)
		e.idle.set(stream.Stream, idle)
	}
	delete(e.closings, stream.Stream)
	if stream.Worker != nil && enter && !stream.Produced && e.Job.Plan.IsClosing(stream.Stream) {
		e.closings[stream.Stream] = true
	}
	if !stream.Delivered {
		e.undelivered = min(e.undelivered, stream.Stream)
	}
	if stream.Worker == nil {
		return
	}
	id, ref := stream.Worker.WorkerId, Ref{e, stream.Stream}
	if !enter {
		if delete(s.leases[id], ref); len(s.leases[id]) == 0 {
			delete(s.leases, id)
		}
		return
	}
	if s.leases[id] == nil {
		s.leases[id] = map[Ref]struct{}{}
	}
	s.leases[id][ref] = struct{}{}
}

// drop removes the streams of an epoch that ends from the indexes.
func (s *State) drop(e *Epoch) {
	for _, stream := range e.active {
		s.index(e, stream, false)
	}
	delete(s.opened, e.Opened)
}

// Leases returns the streams that a worker holds, in the order of jobs, epochs and streams.
func (s *State) Leases(workerID string) []Ref {
	list := make([]Ref, 0, len(s.leases[workerID]))
	for ref := range s.leases[workerID] {
		list = append(list, ref)
	}
	slices.SortFunc(list, func(a, b Ref) int {
		return cmp.Or(cmp.Compare(a.Epoch.Job.Sequence, b.Epoch.Job.Sequence), cmp.Compare(a.Epoch.Epoch, b.Epoch.Epoch), cmp.Compare(a.Stream, b.Stream))
	})
	return list
}

// EachLease visits the streams that a worker holds, in the order of jobs, epochs and streams.
func (s *State) EachLease(workerID string, do func(*Job, *Epoch, *pecanv1.StoredStream)) {
	for _, held := range s.Leases(workerID) {
		if stream := held.Epoch.Find(held.Stream); stream != nil && stream.Worker.GetWorkerId() == workerID {
			do(held.Epoch.Job, held.Epoch, stream)
		}
	}
}

// Holders returns the ids of the workers that hold streams, ascending.
func (s *State) Holders() []string { return slices.Sorted(maps.Keys(s.leases)) }
