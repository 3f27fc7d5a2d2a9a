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
	case *pecanv1.Record_ConsumerAssigned:
		r := kind.ConsumerAssigned
		stream, err := s.stream(r.Id)
		if err != nil {
			return err
		}
		// Old records have no assignment number, but they count as assignments.
		if r.Assignment != 0 && r.Assignment != stream.Assignment+1 {
			return fmt.Errorf("assignment %d of stream %d after assignment %d", r.Assignment, r.Id.GetStream(), stream.Assignment)
		}
		stream.Consumer, stream.StartIndex, stream.Assignment = r.ClientId, r.StartIndex, stream.Assignment+1
	case *pecanv1.Record_ConsumerReleased:
		stream, err := s.stream(kind.ConsumerReleased.Id)
		if err != nil {
			return err
		}
		stream.Consumer, stream.StartIndex = "", kind.ConsumerReleased.NextIndex
	case *pecanv1.Record_StreamProduced:
		r := kind.StreamProduced
		stream, err := s.stream(r.Id)
		if err != nil {
			return err
		}
		if stream.Worker == nil || stream.Lease != r.Lease {
			return fmt.Errorf("stream %d produced under lease %d, held is %d", r.Id.GetStream(), r.Lease, stream.Lease)
		}
		stream.Produced, stream.RemainderRows = true, r.RemainderRows
		if !stream.Delivered {
			// A delivered stream runs again only for its remainder rows. If it was truncated, the run produces
			// more than was read.
			stream.Count = r.Count
		}
	case *pecanv1.Record_StreamDelivered:
		stream, err := s.stream(kind.StreamDelivered.Id)
		if err != nil {
			return err
		}
		r := kind.StreamDelivered
		stream.Delivered, stream.Count = true, r.Count
		if r.Truncated {
			stream.Truncated, stream.Progress = true, max(stream.Progress, r.Produced)
		}
	default:
		return errors.New("unknown kind of record; it may come from a newer version")
	}
	return nil
}

func (s *State) applyLeaseGranted(r *pecanv1.LeaseGranted) error {
	stream, err := s.stream(r.Id)
	if err != nil {
		return err
	}
	if r.Lease <= s.lastLease {
		return fmt.Errorf("lease %d after lease %d", r.Lease, s.lastLease)
	}
	if stream.Worker != nil || r.Worker == nil {
		return fmt.Errorf("stream %d is leased already, or to nobody", r.Id.GetStream())
	}
	s.lastLease, stream.Lease, stream.Worker = r.Lease, r.Lease, r.Worker
	stream.Produced, stream.RemainderRows = false, 0
	if r.Restart {
		stream.StartIndex, stream.Delivered, stream.Count = 0, false, 0
	}
	return nil
}

func (s *State) applyLeaseLost(r *pecanv1.LeaseLost) error {
	stream, err := s.stream(r.Id)
	if err != nil {
		return err
	}
	if stream.Worker == nil || stream.Lease != r.Lease {
		return fmt.Errorf("stream %d lost lease %d, held is %d", r.Id.GetStream(), r.Lease, stream.Lease)
	}
	stream.Worker, stream.Why, stream.OpeningCrashes = nil, r.Why, r.OpeningCrashes
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
	return nil
}
