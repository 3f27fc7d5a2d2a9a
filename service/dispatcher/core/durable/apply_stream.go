package durable

import (
	"errors"
	"fmt"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/dispatcher/core/crashguard"
)

func (s *State) applyStream(record *pecanv1.Record) error {
	switch kind := record.GetKind().(type) {
	case *pecanv1.Record_LeaseGranted:
		return s.applyLeaseGranted(kind.LeaseGranted)
	case *pecanv1.Record_LeaseLost:
		return s.applyLeaseLost(kind.LeaseLost)
	case *pecanv1.Record_LeasesGranted, *pecanv1.Record_ConsumersAssigned, *pecanv1.Record_StreamsProduced, *pecanv1.Record_StreamsDelivered:
		return s.applyList(record)
	case *pecanv1.Record_ConsumerAssigned:
		r := kind.ConsumerAssigned
		epoch, stream, err := s.stream(r.Id)
		if err != nil {
			return err
		}
		// Old records have no assignment number, but they count as assignments.
		if r.Assignment != 0 && r.Assignment != stream.Assignment+1 {
			return fmt.Errorf("assignment %d of stream %d cannot follow assignment %d", r.Assignment, r.Id.GetStream(), stream.Assignment)
		}
		s.change(epoch, stream.Stream, func(stream *pecanv1.StoredStream) { assign(stream, r.ClientId, r.StartIndex) })
	case *pecanv1.Record_ConsumerReleased:
		epoch, stream, err := s.stream(kind.ConsumerReleased.Id)
		if err != nil {
			return err
		}
		s.change(epoch, stream.Stream, func(stream *pecanv1.StoredStream) {
			stream.Consumer, stream.StartIndex = "", kind.ConsumerReleased.NextIndex
		})
	case *pecanv1.Record_StreamProduced:
		r := kind.StreamProduced
		epoch, stream, err := s.stream(r.Id)
		if err != nil {
			return err
		}
		if err := checkProduced(stream, r.Lease); err != nil {
			return err
		}
		s.change(epoch, stream.Stream, func(stream *pecanv1.StoredStream) { produce(stream, r.Count, r.RemainderRows) })
	case *pecanv1.Record_StreamDelivered:
		r := kind.StreamDelivered
		epoch, stream, err := s.stream(r.Id)
		if err != nil {
			return err
		}
		s.change(epoch, stream.Stream, func(stream *pecanv1.StoredStream) {
			stream.Delivered, stream.Count = true, r.Count
			if r.Truncated {
				stream.Truncated, stream.Progress = true, max(stream.Progress, r.Produced)
			}
		})
	default:
		return errors.New("the kind of the record is unknown; the record may come from a newer version")
	}
	return nil
}

func assign(stream *pecanv1.StoredStream, clientID string, startIndex uint64) {
	stream.Consumer, stream.StartIndex, stream.Assignment = clientID, startIndex, stream.Assignment+1
}

func checkProduced(stream *pecanv1.StoredStream, lease uint64) error {
	if stream.Worker == nil || stream.Lease != lease {
		return fmt.Errorf("stream %d was produced under lease %d, but lease %d is held", stream.Stream, lease, stream.Lease)
	}
	return nil
}

func produce(stream *pecanv1.StoredStream, count, remainderRows uint64) {
	stream.Produced, stream.RemainderRows = true, remainderRows
	if !stream.Delivered {
		// A delivered stream runs again only for its remainder rows. If it was truncated, the run produces
		// more than was read.
		stream.Count = count
	}
}

func (s *State) applyLeaseGranted(r *pecanv1.LeaseGranted) error {
	epoch, stream, err := s.stream(r.Id)
	if err != nil {
		return err
	}
	if r.Lease <= s.lastLease {
		return fmt.Errorf("lease %d cannot follow lease %d", r.Lease, s.lastLease)
	}
	if stream.Worker != nil || r.Worker == nil {
		return fmt.Errorf("stream %d is leased already, or the record names no worker", r.Id.GetStream())
	}
	s.lastLease = r.Lease
	s.change(epoch, stream.Stream, func(stream *pecanv1.StoredStream) { grant(stream, r.Lease, 0, r.Worker, r.Restart) })
	return nil
}

// grant leases a stream to a worker. The number is 0 if the worker has none.
func grant(stream *pecanv1.StoredStream, lease uint64, number uint32, worker *pecanv1.WorkerAddress, restart bool) {
	stream.Lease, stream.Worker, stream.WorkerNumber = lease, worker, number
	stream.Produced, stream.RemainderRows = false, 0
	if restart {
		stream.StartIndex, stream.Delivered, stream.Count = 0, false, 0
	}
}

func (s *State) applyLeaseLost(r *pecanv1.LeaseLost) error {
	epoch, stream, err := s.stream(r.Id)
	if err != nil {
		return err
	}
	if stream.Worker == nil || stream.Lease != r.Lease {
		return fmt.Errorf("stream %d lost lease %d, but lease %d is held", r.Id.GetStream(), r.Lease, stream.Lease)
	}
	s.change(epoch, stream.Stream, func(stream *pecanv1.StoredStream) { loseLease(stream, r) })
	return nil
}

// loseLease takes a stream from its worker, and counts deaths, crashes and failures by the cause.
func loseLease(stream *pecanv1.StoredStream, r *pecanv1.LeaseLost) {
	stream.Worker, stream.WorkerNumber, stream.Why, stream.OpeningCrashes = nil, 0, r.Why, r.OpeningCrashes
	if r.Truncated {
		stream.Truncated, stream.Progress = true, max(stream.Progress, r.Progress)
	}
	if !stream.Delivered || stream.RemainderRows > 0 {
		// The produced elements are lost with the worker. Only a delivered stream without a remainder needs no
		// worker any more.
		stream.Produced, stream.RemainderRows = false, 0
	}
	switch r.Cause {
	case pecanv1.LeaseLost_DIED:
		further := crashguard.Further(stream, r)
		stream.Deaths, stream.Crashes = crashguard.Count(stream, r)
		if further || r.SuspectBelow > 0 {
			stream.Progress = r.Progress
		}
		stream.SuspectBelow, stream.InFlight, stream.Serial = r.SuspectBelow, r.InFlight, r.Serial
	case pecanv1.LeaseLost_FAILED:
		stream.Failures++
	case pecanv1.LeaseLost_MOVED:
		if stream.Serial && !r.Serial {
			// The suspected elements did no harm. The next guard begins with the known read-ahead.
			stream.Serial, stream.Deaths, stream.Crashes, stream.SuspectBelow = false, 0, 0, 0
		}
	}
}
