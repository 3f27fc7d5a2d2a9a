package core

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
)

// Apply changes the state by one record. A record that does not fit the state changes nothing and is an error: it means
// that the journal is damaged, or that a decision was wrong. Messages inside the record become part of the state.
func (s *State) Apply(record *pecanv1.Record) error {
	if err := s.apply(record); err != nil {
		return fmt.Errorf("apply record %d (%T): %w", s.applied+1, record.GetKind(), err)
	}
	s.applied++
	return nil
}

func (s *State) apply(record *pecanv1.Record) error {
	switch kind := record.GetKind().(type) {
	case *pecanv1.Record_Started:
		return s.applyStarted(kind.Started)
	case *pecanv1.Record_DatasetAdded:
		if kind.DatasetAdded.GetDataset() == nil {
			return errors.New("no dataset")
		}
		s.setDataset(kind.DatasetAdded.GetDataset().GetDatasetId(), kind.DatasetAdded.GetDataset())
		return nil
	case *pecanv1.Record_DatasetRemoved:
		s.setDataset(kind.DatasetRemoved.GetDatasetId(), nil)
		return nil
	case *pecanv1.Record_ClientJoined:
		r := kind.ClientJoined
		s.clients[r.ClientId] = &pecanv1.StoredClient{ClientId: r.ClientId, Host: r.Host, Pid: r.Pid}
		return nil
	case *pecanv1.Record_ClientLeft:
		delete(s.clients, kind.ClientLeft.GetClientId())
		return nil
	case *pecanv1.Record_JobCreated, *pecanv1.Record_JobJoined, *pecanv1.Record_JobLeft,
		*pecanv1.Record_JobFailed, *pecanv1.Record_JobRemoved:
		return s.applyJob(record)
	case *pecanv1.Record_EpochOpened, *pecanv1.Record_EpochJoined, *pecanv1.Record_EpochAdopted, *pecanv1.Record_EpochLeft,
		*pecanv1.Record_EpochFailed, *pecanv1.Record_EpochClosed, *pecanv1.Record_StreamAdded:
		return s.applyEpoch(record)
	case *pecanv1.Record_CacheSegmentAdded, *pecanv1.Record_CacheCommitted, *pecanv1.Record_CacheSegmentDropped, *pecanv1.Record_CacheRemoved:
		return s.applyCache(record)
	case *pecanv1.Record_OrderDecided, *pecanv1.Record_OrderJudged, *pecanv1.Record_ProfileKept:
		return s.applyOrder(record)
	}
	return s.applyStream(record)
}

func (s *State) applyStarted(r *pecanv1.DispatcherStarted) error {
	if s.clusterID != "" && r.ClusterId != s.clusterID {
		return fmt.Errorf("cluster %q in a store of cluster %q", r.ClusterId, s.clusterID)
	}
	s.clusterID = r.ClusterId
	s.incarnation++
	return nil
}

func (s *State) applyJob(record *pecanv1.Record) error {
	if kind, ok := record.Kind.(*pecanv1.Record_JobCreated); ok {
		return s.applyJobCreated(kind.JobCreated)
	}
	switch kind := record.Kind.(type) {
	case *pecanv1.Record_JobJoined:
		r := kind.JobJoined
		job, err := s.job(r.JobId)
		if err != nil {
			return err
		}
		client, ok := s.clients[r.ClientId]
		if !ok {
			return fmt.Errorf("no client %q", r.ClientId)
		}
		if !slices.Contains(job.ClientIds, r.ClientId) {
			job.ClientIds = append(job.ClientIds, r.ClientId)
		}
		remember(client, &pecanv1.StoredRequest{RequestId: r.RequestId, JobId: r.JobId})
	case *pecanv1.Record_JobLeft:
		job, err := s.job(kind.JobLeft.JobId)
		if err != nil {
			return err
		}
		job.ClientIds = slices.DeleteFunc(job.ClientIds, func(id string) bool { return id == kind.JobLeft.ClientId })
		if client, ok := s.clients[kind.JobLeft.ClientId]; ok {
			client.Requests = slices.DeleteFunc(client.Requests, func(q *pecanv1.StoredRequest) bool { return q.JobId == job.JobId })
		}
	case *pecanv1.Record_JobFailed:
		job, err := s.job(kind.JobFailed.JobId)
		if err != nil {
			return err
		}
		job.Error = kind.JobFailed.Error
	case *pecanv1.Record_JobRemoved:
		job, err := s.job(kind.JobRemoved.JobId)
		if err != nil {
			return err
		}
		delete(s.jobs, job.JobId)
		if s.named[job.Name] == job.JobId {
			delete(s.named, job.Name)
		}
		s.ordered = slices.DeleteFunc(s.ordered, func(j *pecanv1.StoredJob) bool { return j == job })
	}
	return nil
}

func (s *State) applyJobCreated(r *pecanv1.JobCreated) error {
	if _, taken := s.jobs[r.JobId]; taken {
		return fmt.Errorf("job %q exists", r.JobId)
	}
	if _, taken := s.named[r.Name]; taken && r.Name != "" {
		return fmt.Errorf("a job named %q exists", r.Name)
	}
	s.addJob(&pecanv1.StoredJob{
		JobId: r.JobId, Name: r.Name, DatasetId: r.DatasetId, Options: r.Options, Plan: r.Plan, Sequence: s.applied + 1,
	})
	return nil
}

// remember keeps the newest requests of a client.
func remember(client *pecanv1.StoredClient, request *pecanv1.StoredRequest) {
	if request.RequestId == "" {
		return
	}
	client.Requests = append(client.Requests, request)
	if over := len(client.Requests) - keptRequests; over > 0 {
		client.Requests = slices.Delete(client.Requests, 0, over)
	}
}

func (s *State) applyEpoch(record *pecanv1.Record) error {
	switch kind := record.Kind.(type) {
	case *pecanv1.Record_EpochOpened:
		return s.applyEpochOpened(kind.EpochOpened)
	case *pecanv1.Record_EpochJoined:
		return s.applyEpochJoined(kind.EpochJoined)
	case *pecanv1.Record_EpochAdopted:
		r := kind.EpochAdopted
		_, epoch, err := s.epoch(r.JobId, r.Epoch)
		if err != nil {
			return err
		}
		pass := findPass(epoch, r.ClientId)
		if pass == nil {
			return fmt.Errorf("epoch %d adopted by client %q, which has not opened it", r.Epoch, r.ClientId)
		}
		pass.Prefetch = false
	case *pecanv1.Record_EpochLeft:
		_, epoch, err := s.epoch(kind.EpochLeft.JobId, kind.EpochLeft.Epoch)
		if err != nil {
			return err
		}
		epoch.Passes = slices.DeleteFunc(epoch.Passes, func(p *pecanv1.StoredPass) bool { return p.ClientId == kind.EpochLeft.ClientId })
	case *pecanv1.Record_EpochFailed:
		_, epoch, err := s.epoch(kind.EpochFailed.JobId, kind.EpochFailed.Epoch)
		if err != nil {
			return err
		}
		epoch.Error = kind.EpochFailed.Error
	case *pecanv1.Record_EpochClosed:
		r := kind.EpochClosed
		job, epoch, err := s.epoch(r.JobId, r.Epoch)
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
		if over := len(job.Closed) - keptClosed; over > 0 {
			job.Closed = slices.Delete(job.Closed, 0, over)
		}
	case *pecanv1.Record_StreamAdded:
		job, epoch, err := s.epoch(kind.StreamAdded.Id.GetJobId(), kind.StreamAdded.Id.GetEpoch())
		if err != nil {
			return err
		}
		if int64(kind.StreamAdded.Id.GetStream()) != int64(len(epoch.Streams)) {
			return fmt.Errorf("stream %d added to %d streams", kind.StreamAdded.Id.GetStream(), len(epoch.Streams))
		}
		stream := &pecanv1.StoredStream{Stream: kind.StreamAdded.Id.GetStream()}
		if sole := soleConsumer(job, epoch); sole != "" {
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
		return fmt.Errorf("epoch %d opened where %d is next", r.Epoch, job.NextEpoch)
	case open || r.Epoch > maxEpoch:
		return fmt.Errorf("epoch %d opened, which is open already or too large", r.Epoch)
	case r.Streams > maxStreams:
		return fmt.Errorf("epoch of %d streams", r.Streams)
	case len(r.Order) > 0 && !slices.Equal(r.Order, s.orderOf(job)) && !namesOrder(job, r.Position, r.Order):
		return fmt.Errorf("epoch %d opened in an order that was not decided", r.Epoch)
	}
	if err := checkOrderStreams(r); err != nil {
		return err
	}
	epoch := &pecanv1.StoredEpoch{Epoch: r.Epoch, Order: r.Order, OrderStreams: r.OrderStreams}
	var assigned uint64
	if r.Position != nil {
		// The same client may have read the epoch before, and copies of what it told then may still come. It told that under the one assignment
		// behind this number as it was then, and under a lease that was granted since: this number is larger now.
		assigned = s.lastLease
	}
	for i := range r.Streams {
		epoch.Streams = append(epoch.Streams, &pecanv1.StoredStream{Stream: i, Assignment: assigned})
	}
	if err := beginAt(epoch, r.Position); err != nil {
		return err
	}
	job.Epochs = slices.Insert(job.Epochs, at, epoch)
	job.NextEpoch = max(job.NextEpoch, r.Epoch+1)
	return nil
}

// beginAt puts an epoch where a trainer stopped: what it used is its own, and what it had to the end is delivered.
func beginAt(epoch *pecanv1.StoredEpoch, position *pecanv1.Position) error {
	if len(position.GetNext()) > len(epoch.Streams) {
		return fmt.Errorf("a position in %d streams, where there are %d", len(position.GetNext()), len(epoch.Streams))
	}
	for i, next := range position.GetNext() {
		epoch.Streams[i].StartIndex = next
	}
	for _, number := range position.GetEnded() {
		if uint64(number) >= uint64(len(epoch.Streams)) {
			return fmt.Errorf("stream %d has ended, where there are %d", number, len(epoch.Streams))
		}
		stream := epoch.Streams[number]
		stream.Delivered, stream.Count = true, stream.StartIndex
	}
	return nil
}

func (s *State) applyEpochJoined(r *pecanv1.EpochJoined) error {
	job, epoch, err := s.epoch(r.JobId, r.Epoch)
	if err != nil {
		return err
	}
	client, ok := s.clients[r.ClientId]
	if !ok {
		return fmt.Errorf("no client %q", r.ClientId)
	}
	if findPass(epoch, r.ClientId) == nil {
		epoch.Passes = append(epoch.Passes, &pecanv1.StoredPass{ClientId: r.ClientId, Prefetch: r.Prefetch, HeartbeatNumber: r.HeartbeatNumber})
	}
	for _, stream := range epoch.Streams {
		if private(job) {
			stream.Consumer = r.ClientId
			stream.Assignment++
		}
	}
	remember(client, &pecanv1.StoredRequest{RequestId: r.RequestId, JobId: r.JobId, Opened: true, Epoch: r.Epoch})
	return nil
}

// soleConsumer is who reads every stream of a private job's epoch; nobody for a shared job.
func soleConsumer(job *pecanv1.StoredJob, epoch *pecanv1.StoredEpoch) string {
	if private(job) && len(epoch.Passes) > 0 {
		return epoch.Passes[0].ClientId
	}
	return ""
}

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
		// Records of before assignments were numbered have none; they count all the same.
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
			// One that was delivered is run again for its rows alone. If it had been given up, more is made than was read.
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

// comesFurther tells whether a death is another element's than the last one. Where that is not known, any progress counts that is known.
func comesFurther(stream *pecanv1.StoredStream, r *pecanv1.LeaseLost) bool {
	switch {
	case r.SuspectBelow == 0:
		return r.Progress > stream.Progress
	case stream.SuspectBelow == 0:
		return false
	case r.Crashed:
		return r.Progress >= stream.SuspectBelow+stream.InFlight
	}
	return r.Progress >= stream.SuspectBelow
}

// counted gives the deaths in a row at one element, and those of them that were crashes, with one more.
func counted(stream *pecanv1.StoredStream, r *pecanv1.LeaseLost) (deaths, crashes uint32) {
	if !comesFurther(stream, r) {
		deaths, crashes = stream.Deaths, stream.Crashes
	}
	deaths++
	if r.Crashed {
		crashes++
	}
	return deaths, crashes
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
		// What the worker had made is gone with it; only a delivered stream without a remainder needs no worker any more.
		stream.Produced, stream.RemainderRows = false, 0
	}
	switch r.Cause {
	case pecanv1.LeaseLost_DIED:
		further := comesFurther(stream, r)
		stream.Deaths, stream.Crashes = counted(stream, r)
		if further || r.SuspectBelow > 0 {
			stream.Progress = r.Progress
		}
		stream.SuspectBelow, stream.InFlight, stream.Serial = r.SuspectBelow, r.InFlight, r.Serial
	case pecanv1.LeaseLost_FAILED:
		stream.Failures++
	case pecanv1.LeaseLost_MOVED:
		if stream.Serial && !r.Serial {
			// Nothing came of the suspicion; another one begins with how far steps are now known to work ahead.
			stream.Serial, stream.Deaths, stream.Crashes, stream.SuspectBelow = false, 0, 0, 0
		}
	}
	return nil
}
