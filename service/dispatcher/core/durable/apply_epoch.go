package durable

import (
	"cmp"
	"fmt"
	"slices"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
)

func (s *State) applyEpoch(record *pecanv1.Record) error {
	switch kind := record.Kind.(type) {
	case *pecanv1.Record_EpochOpened:
		return s.applyEpochOpened(kind.EpochOpened)
	case *pecanv1.Record_EpochJoined:
		return s.applyEpochJoined(kind.EpochJoined)
	case *pecanv1.Record_EpochAdopted:
		r := kind.EpochAdopted
		_, epoch, err := s.Epoch(r.JobId, r.Epoch)
		if err != nil {
			return err
		}
		pass := FindPass(epoch, r.ClientId)
		if pass == nil {
			return fmt.Errorf("epoch %d adopted by client %q, who has not opened it", r.Epoch, r.ClientId)
		}
		pass.Prefetch = false
	case *pecanv1.Record_EpochLeft:
		_, epoch, err := s.Epoch(kind.EpochLeft.JobId, kind.EpochLeft.Epoch)
		if err != nil {
			return err
		}
		epoch.Passes = slices.DeleteFunc(epoch.Passes, func(p *pecanv1.StoredPass) bool { return p.ClientId == kind.EpochLeft.ClientId })
	case *pecanv1.Record_EpochFailed:
		_, epoch, err := s.Epoch(kind.EpochFailed.JobId, kind.EpochFailed.Epoch)
		if err != nil {
			return err
		}
		epoch.Error = kind.EpochFailed.Error
	case *pecanv1.Record_EpochClosed:
		r := kind.EpochClosed
		job, epoch, err := s.Epoch(r.JobId, r.Epoch)
		if err != nil {
			return err
		}
		job.Epochs = slices.DeleteFunc(job.Epochs, func(e *pecanv1.StoredEpoch) bool { return e == epoch })
		closed := &pecanv1.ClosedEpoch{
			Epoch: r.Epoch, Delivered: r.Delivered, Elements: r.Elements, Error: r.Error, StreamsTruncated: r.StreamsTruncated, Lost: r.Lost,
			Ordered: len(epoch.Order) > 0, OrderedStreams: epoch.OrderStreams,
		}
		at, _ := slices.BinarySearchFunc(job.Closed, r.Epoch, func(c *pecanv1.ClosedEpoch, n uint64) int { return cmp.Compare(c.Epoch, n) })
		job.Closed = slices.Insert(job.Closed, at, closed)
		if over := len(job.Closed) - maxClosedEpochs; over > 0 {
			job.Closed = slices.Delete(job.Closed, 0, over)
		}
	case *pecanv1.Record_StreamAdded:
		job, epoch, err := s.Epoch(kind.StreamAdded.Id.GetJobId(), kind.StreamAdded.Id.GetEpoch())
		if err != nil {
			return err
		}
		if int64(kind.StreamAdded.Id.GetStream()) != int64(len(epoch.Streams)) {
			return fmt.Errorf("stream %d added to %d streams", kind.StreamAdded.Id.GetStream(), len(epoch.Streams))
		}
		stream := &pecanv1.StoredStream{Stream: kind.StreamAdded.Id.GetStream()}
		if sole := onlyConsumer(job, epoch); sole != "" {
			stream.Consumer, stream.Assignment = sole, 1
		}
		epoch.Streams = append(epoch.Streams, stream)
	}
	return nil
}

func (s *State) applyEpochOpened(r *pecanv1.EpochOpened) error {
	job, err := s.job(r.JobId)
	if err != nil {
		return err
	}
	at, open := slices.BinarySearchFunc(job.Epochs, r.Epoch, func(e *pecanv1.StoredEpoch, n uint64) int { return cmp.Compare(e.Epoch, n) })
	switch {
	case r.Position == nil && r.Epoch != job.NextEpoch:
		return fmt.Errorf("epoch %d opened, but %d is next", r.Epoch, job.NextEpoch)
	case open || r.Epoch > MaxEpoch:
		return fmt.Errorf("epoch %d opened: it is open already, or its number is too large", r.Epoch)
	case r.Streams > maxStreams:
		return fmt.Errorf("epoch of %d streams", r.Streams)
	case len(r.Order) > 0 && !slices.Equal(r.Order, s.OrderFor(job)) && !NamesOrder(job, r.Position, r.Order):
		return fmt.Errorf("epoch %d opened in an order that was not decided", r.Epoch)
	}
	if err := checkOrderStreams(r); err != nil {
		return err
	}
	epoch := &pecanv1.StoredEpoch{Epoch: r.Epoch, Order: r.Order, OrderStreams: r.OrderStreams}
	var assigned uint64
	if r.Position != nil {
		// The same client may have read the epoch before, and copies of its calls may still arrive. They name the
		// one assignment after the number of that time, and a lease granted since. This number is larger now, so
		// the copies are recognized.
		assigned = s.lastLease
	}
	for i := range r.Streams {
		epoch.Streams = append(epoch.Streams, &pecanv1.StoredStream{Stream: i, Assignment: assigned})
	}
	if err := startAt(epoch, r.Position); err != nil {
		return err
	}
	job.Epochs = slices.Insert(job.Epochs, at, epoch)
	job.NextEpoch = max(job.NextEpoch, r.Epoch+1)
	return nil
}

// startAt sets an epoch to where a trainer stopped. The used elements count as received, and streams that had
// ended count as delivered.
func startAt(epoch *pecanv1.StoredEpoch, position *pecanv1.Position) error {
	if len(position.GetNext()) > len(epoch.Streams) {
		return fmt.Errorf("a position in %d streams of an epoch with %d", len(position.GetNext()), len(epoch.Streams))
	}
	for i, next := range position.GetNext() {
		epoch.Streams[i].StartIndex = next
	}
	for _, number := range position.GetEnded() {
		if uint64(number) >= uint64(len(epoch.Streams)) {
			return fmt.Errorf("a position with ended stream %d of an epoch with %d streams", number, len(epoch.Streams))
		}
		stream := epoch.Streams[number]
		stream.Delivered, stream.Count = true, stream.StartIndex
	}
	return nil
}

// checkOrderStreams refuses a list of ordered streams that does not fit the epoch.
func checkOrderStreams(r *pecanv1.EpochOpened) error {
	if len(r.OrderStreams) > 0 && len(r.Order) == 0 {
		return fmt.Errorf("epoch %d opened with ordered streams and without an order", r.Epoch)
	}
	for i, stream := range r.OrderStreams {
		if stream >= r.Streams || i > 0 && stream <= r.OrderStreams[i-1] {
			return fmt.Errorf("epoch %d opened with the order in streams %v of %d", r.Epoch, r.OrderStreams, r.Streams)
		}
	}
	return nil
}

func (s *State) applyEpochJoined(r *pecanv1.EpochJoined) error {
	job, epoch, err := s.Epoch(r.JobId, r.Epoch)
	if err != nil {
		return err
	}
	client, ok := s.clients[r.ClientId]
	if !ok {
		return fmt.Errorf("no client %q", r.ClientId)
	}
	if FindPass(epoch, r.ClientId) == nil {
		epoch.Passes = append(epoch.Passes, &pecanv1.StoredPass{ClientId: r.ClientId, Prefetch: r.Prefetch, HeartbeatNumber: r.HeartbeatNumber})
	}
	for _, stream := range epoch.Streams {
		if Private(job) {
			stream.Consumer = r.ClientId
			stream.Assignment++
		}
	}
	addRequest(client, &pecanv1.StoredRequest{RequestId: r.RequestId, JobId: r.JobId, Opened: true, Epoch: r.Epoch})
	return nil
}

// onlyConsumer returns the reader of all streams of a private job's epoch; empty for a shared job.
func onlyConsumer(job *pecanv1.StoredJob, epoch *pecanv1.StoredEpoch) string {
	if Private(job) && len(epoch.Passes) > 0 {
		return epoch.Passes[0].ClientId
	}
	return ""
}
