package durable

import (
	"fmt"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
)

// MaxListed bounds the entries of one record.
const MaxListed = 4096

// listed is the part that all lists have in common.
type listed interface {
	GetOpened() uint64
	GetStreams() []int64
}

func (s *State) applyList(record *pecanv1.Record) error {
	switch kind := record.GetKind().(type) {
	case *pecanv1.Record_LeasesGranted:
		return s.applyLeasesGranted(kind.LeasesGranted)
	case *pecanv1.Record_ConsumersAssigned:
		return s.applyConsumersAssigned(kind.ConsumersAssigned)
	case *pecanv1.Record_StreamsProduced:
		return s.applyStreamsProduced(kind.StreamsProduced)
	}
	return s.applyStreamsDelivered(record.GetStreamsDelivered())
}

// list returns the epoch and the streams of a list. Each stream is there once, and none is settled.
func (s *State) list(r listed) (*Epoch, []uint32, error) {
	epoch := s.opened[r.GetOpened()]
	if epoch == nil {
		return nil, nil, fmt.Errorf("record %d opened no epoch that is open", r.GetOpened())
	}
	streams, err := pecanv1.Numbers[uint32](r.GetStreams())
	if err != nil {
		return nil, nil, err
	}
	if len(streams) == 0 || len(streams) > MaxListed {
		return nil, nil, fmt.Errorf("the list has %d streams; from 1 to %d are possible", len(streams), MaxListed)
	}
	seen := make(map[uint32]bool, len(streams))
	for _, stream := range streams {
		if stream >= epoch.total || seen[stream] || epoch.Settled(stream) {
			return nil, nil, fmt.Errorf("stream %d of %d is listed twice, settled or unknown", stream, epoch.total)
		}
		seen[stream] = true
	}
	return epoch, streams, nil
}

// values returns the values of a list with n entries. Without values all are 0.
func values[Value any](list []Value, n int) ([]Value, error) {
	if len(list) == 0 {
		return make([]Value, n), nil
	}
	if len(list) != n {
		return nil, fmt.Errorf("the list has %d values for %d streams", len(list), n)
	}
	return list, nil
}

// numbers is values of a list of differences.
func numbers[Number uint32 | uint64](differences []int64, n int) ([]Number, error) {
	list, err := pecanv1.Numbers[Number](differences)
	if err != nil {
		return nil, err
	}
	return values(list, n)
}

// applyLeasesGranted grants consecutive leases of one epoch. It checks all streams before it changes one, so that a refused
// record changes nothing.
func (s *State) applyLeasesGranted(r *pecanv1.LeasesGranted) error {
	epoch, streams, err := s.list(r)
	if err != nil {
		return err
	}
	workers, err := numbers[uint32](r.Workers, len(streams))
	if err != nil {
		return err
	}
	last := r.FirstLease + uint64(len(streams)) - 1
	if r.FirstLease <= s.lastLease || last < r.FirstLease {
		return fmt.Errorf("leases from %d on cannot follow lease %d", r.FirstLease, s.lastLease)
	}
	for i, number := range streams {
		if stream := epoch.active[number]; stream != nil && stream.Worker != nil || s.workers[workers[i]] == nil {
			return fmt.Errorf("stream %d is leased already, or the record names no worker", number)
		}
	}
	s.lastLease = last
	for i, number := range streams {
		s.change(epoch, number, func(stream *pecanv1.StoredStream) {
			grant(stream, r.FirstLease+uint64(i), workers[i], s.workers[workers[i]], r.Restart)
		})
	}
	return nil
}

func (s *State) applyConsumersAssigned(r *pecanv1.ConsumersAssigned) error {
	epoch, streams, err := s.list(r)
	if err != nil {
		return err
	}
	starts, err := values(r.StartIndexes, len(streams))
	if err != nil {
		return err
	}
	assignments, err := numbers[uint64](r.Assignments, len(streams))
	if err != nil {
		return err
	}
	for i, number := range streams {
		if before := epoch.Stream(number).Assignment; assignments[i] != before+1 {
			return fmt.Errorf("assignment %d of stream %d cannot follow assignment %d", assignments[i], number, before)
		}
	}
	for i, number := range streams {
		s.change(epoch, number, func(stream *pecanv1.StoredStream) { assign(stream, r.ClientId, starts[i]) })
	}
	return nil
}

// applyStreamsProduced notes the ends of streams of one epoch. It checks all streams before it changes one, so that a
// refused record changes nothing.
func (s *State) applyStreamsProduced(r *pecanv1.StreamsProduced) error {
	epoch, streams, err := s.list(r)
	if err != nil {
		return err
	}
	leases, err := numbers[uint64](r.Leases, len(streams))
	if err != nil {
		return err
	}
	counts, err := values(r.Counts, len(streams))
	if err != nil {
		return err
	}
	rows, err := values(r.RemainderRows, len(streams))
	if err != nil {
		return err
	}
	for i, number := range streams {
		if err := checkProduced(epoch.Stream(number), leases[i]); err != nil {
			return err
		}
	}
	for i, number := range streams {
		s.change(epoch, number, func(stream *pecanv1.StoredStream) { produce(stream, counts[i], rows[i]) })
	}
	return nil
}

func (s *State) applyStreamsDelivered(r *pecanv1.StreamsDelivered) error {
	epoch, streams, err := s.list(r)
	if err != nil {
		return err
	}
	counts, err := values(r.Counts, len(streams))
	if err != nil {
		return err
	}
	for i, number := range streams {
		s.change(epoch, number, func(stream *pecanv1.StoredStream) { stream.Delivered, stream.Count = true, counts[i] })
		s.endLeases(epoch, number)
	}
	return nil
}

// EndedLease is a lease that ended because nobody needs its stream any more.
type EndedLease struct {
	Ref
	Lease    uint64
	WorkerID string
}

// endLeases ends the lease of a stream, and of those that it joined, if nobody needs them any more.
func (s *State) endLeases(e *Epoch, number uint32) {
	stream := e.active[number]
	if stream == nil || !e.Settles(stream) {
		return
	}
	sources := e.kept(number)
	if stream.Worker != nil {
		s.ended = append(s.ended, EndedLease{Ref{e, number}, stream.Lease, stream.Worker.WorkerId})
		s.change(e, number, func(stream *pecanv1.StoredStream) { stream.Worker, stream.WorkerNumber = nil, 0 })
	}
	for _, source := range sources {
		s.endLeases(e, source.Stream)
	}
}

// EndedLeases returns the leases that the last record ended because nobody needs their streams any more.
func (s *State) EndedLeases() []EndedLease { return s.ended }
