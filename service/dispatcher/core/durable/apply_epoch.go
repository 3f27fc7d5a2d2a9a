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
		job, epoch, err := s.Epoch(r.JobId, r.Epoch)
		if err != nil {
			return err
		}
		pass := FindPass(epoch, r.ClientId)
		if pass == nil {
			return fmt.Errorf("client %[2]q cannot adopt epoch %[1]d, which it has not opened", r.Epoch, r.ClientId)
		}
		if err := checkCacheKeys(r.CacheKeys); err != nil {
			return err
		}
		pass.Prefetch = false
		s.countEpoch(job, r)
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
		epoch.Error, epoch.FailedInOrder = kind.EpochFailed.Error, kind.EpochFailed.InOrder
	case *pecanv1.Record_EpochClosed:
		r := kind.EpochClosed
		job, epoch, err := s.Epoch(r.JobId, r.Epoch)
		if err != nil {
			return err
		}
		s.drop(epoch)
		job.Epochs = slices.DeleteFunc(job.Epochs, func(e *Epoch) bool { return e == epoch })
		closed := &pecanv1.ClosedEpoch{
			Epoch: r.Epoch, Delivered: r.Delivered, Elements: r.Elements, Error: r.Error, StreamsTruncated: r.StreamsTruncated, Lost: r.Lost,
			Ordered: len(epoch.Order) > 0, OrderedStreams: epoch.OrderStreams, OrderedFrom: epoch.OrderFrom, OrderedBelow: epoch.OrderBelow, CachedStep: epoch.CachedStep,
			FailedInOrder: epoch.FailedInOrder,
		}
		at, _ := slices.BinarySearchFunc(job.Closed, r.Epoch, func(c *pecanv1.ClosedEpoch, n uint64) int { return cmp.Compare(c.Epoch, n) })
		job.Closed = slices.Insert(job.Closed, at, closed)
		if over := len(job.Closed) - maxClosedEpochs; over > 0 {
			job.Closed = slices.Delete(job.Closed, 0, over)
		}
		s.settleCarry(job)
	case *pecanv1.Record_EpochCarried:
		return s.applyEpochCarried(kind.EpochCarried)
	case *pecanv1.Record_StreamAdded:
		_, epoch, err := s.Epoch(kind.StreamAdded.Id.GetJobId(), kind.StreamAdded.Id.GetEpoch())
		if err != nil {
			return err
		}
		if kind.StreamAdded.Id.GetStream() != epoch.total || epoch.total >= maxStreams {
			return fmt.Errorf("stream %d cannot be added to an epoch of %d streams", kind.StreamAdded.Id.GetStream(), epoch.total)
		}
		s.addStream(epoch)
	}
	return nil
}

// addStream adds a fresh stream. An epoch that grows above wholeStreams settles what ended before.
func (s *State) addStream(e *Epoch) {
	e.total++
	e.delivered, e.truncated = e.delivered.resized(e.total), e.truncated.resized(e.total)
	if e.total == wholeStreams+1 {
		for _, stream := range e.Active() {
			s.settle(e, stream)
		}
	}
}

// applyEpochOpened adds an epoch. With a position, the elements that a trainer has used count as received.
func (s *State) applyEpochOpened(r *pecanv1.EpochOpened) error {
	job, err := s.job(r.JobId)
	if err != nil {
		return err
	}
	switch {
	case r.Position == nil && r.Epoch != job.NextEpoch:
		return fmt.Errorf("epoch %d was opened, but %d is next", r.Epoch, job.NextEpoch)
	case FindEpoch(job, r.Epoch) != nil || r.Epoch > MaxEpoch:
		return fmt.Errorf("epoch %d is open already, or its number is too large", r.Epoch)
	case r.Streams > maxStreams || r.Streams != PlannedStreams(job):
		return fmt.Errorf("epoch %d has %d streams, but the plan has %d", r.Epoch, r.Streams, PlannedStreams(job))
	case len(r.Order) > 0 && !slices.Equal(r.Order, s.OrderFor(job)) && !NamesOrder(job, r.Position, r.Order):
		return fmt.Errorf("epoch %d was opened in an order that was not decided", r.Epoch)
	}
	if err := checkOrderStreams(r.Epoch, r.Order, r.OrderStreams, r.Streams); err != nil {
		return err
	}
	if err := checkCachedStep(job, r.CachedStep); err != nil {
		return err
	}
	begun, next, err := r.Position.BegunStreams(r.Streams)
	if err != nil {
		return err
	}
	ended, err := r.Position.EndedStreams(r.Streams)
	if err != nil {
		return err
	}
	if err := checkCarried(job, r); err != nil {
		return err
	}
	epoch := newEpoch(job, r.Epoch, s.applied+1, r.Streams)
	epoch.Joins, epoch.Carried, epoch.Carry = r.Position.GetJoins(), r.Position.GetCarried(), r.Position.GetCarry()
	if r.After != nil {
		if before := FindEpoch(job, *r.After); before.Carried {
			epoch.Joins = before.Carry
		} else {
			epoch.After = r.After
		}
	}
	epoch.Order, epoch.OrderStreams, epoch.CachedStep = r.Order, r.OrderStreams, r.CachedStep
	if r.Position != nil {
		// The same client may have read the epoch before, and copies of its calls may still arrive. They name the
		// one assignment after the number of that time, and a lease granted since. This number is larger now, so
		// the copies are recognized.
		epoch.assignment = s.lastLease
	}
	s.addEpoch(epoch)
	// The used elements count as received, and streams that had ended count as delivered.
	for i, stream := range begun {
		s.change(epoch, stream, func(stream *pecanv1.StoredStream) { stream.StartIndex = next[i] })
	}
	for stream := range r.Streams {
		if bitmap(ended).has(stream) {
			s.change(epoch, stream, func(stream *pecanv1.StoredStream) { stream.Delivered, stream.Count = true, stream.StartIndex })
		}
	}
	epoch.sums.elements += r.Position.GetEndedElements()
	job.NextEpoch = max(job.NextEpoch, r.Epoch+1)
	return nil
}

// checkCarried refuses an epoch that joins rows which its job cannot have.
func checkCarried(job *Job, r *pecanv1.EpochOpened) error {
	switch {
	case r.After == nil && len(r.Position.GetJoins()) == 0 && !r.Position.GetCarried():
		return nil
	case !job.Plan.GetCarry():
		return fmt.Errorf("epoch %d was opened with rows of another epoch, but the plan has no carry", r.Epoch)
	case r.After != nil && (r.Position != nil || FindEpoch(job, *r.After) == nil || *r.After >= r.Epoch):
		return fmt.Errorf("epoch %d was opened after epoch %d, which is not open", r.Epoch, *r.After)
	}
	return r.Position.CheckRows(job.Plan)
}

// checkOrderStreams refuses a list of ordered streams that does not fit the epoch.
func checkOrderStreams(epoch uint64, order []string, ordered []uint32, streams uint32) error {
	if len(ordered) > 0 && len(order) == 0 {
		return fmt.Errorf("epoch %d has ordered streams and no order", epoch)
	}
	for i, stream := range ordered {
		if stream >= streams || i > 0 && stream <= ordered[i-1] {
			return fmt.Errorf("epoch %d cannot have the order in streams %v of %d", epoch, ordered, streams)
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
		return fmt.Errorf("client %q does not exist", r.ClientId)
	}
	if err := checkCacheKeys(r.CacheKeys); err != nil {
		return err
	}
	if FindPass(epoch, r.ClientId) == nil {
		epoch.Passes = append(epoch.Passes, &pecanv1.StoredPass{ClientId: r.ClientId, Prefetch: r.Prefetch, HeartbeatNumber: r.HeartbeatNumber})
	}
	if Private(job) {
		epoch.assignment++
		for _, stream := range epoch.Active() {
			s.change(epoch, stream.Stream, func(stream *pecanv1.StoredStream) { assign(stream, r.ClientId, stream.StartIndex) })
		}
	}
	addRequest(client, &pecanv1.StoredRequest{RequestId: r.RequestId, JobId: r.JobId, Opened: true, Epoch: r.Epoch})
	s.countEpoch(job, r)
	return nil
}
