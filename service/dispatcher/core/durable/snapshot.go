package durable

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"

	"google.golang.org/protobuf/proto"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
)

// Restore returns the state of a snapshot.
func Restore(data []byte) (*State, error) {
	snapshot := &pecanv1.Snapshot{}
	if err := proto.Unmarshal(data, snapshot); err != nil {
		return nil, fmt.Errorf("parse snapshot: %w", err)
	}
	s := NewState()
	s.applied, s.clusterID, s.incarnation, s.lastLease =
		snapshot.Applied, snapshot.ClusterId, snapshot.Incarnation, snapshot.LastLease
	s.cachesUsedS = snapshot.CachesUsedS
	for _, dataset := range snapshot.Datasets {
		s.addDataset(dataset)
	}
	for _, client := range snapshot.Clients {
		s.clients[client.ClientId] = client
	}
	for _, cache := range snapshot.Caches {
		s.caches[cache.Key] = cache
		cache.Parts, cache.Streams = max(cache.Parts, cache.Streams), 0
		for i, segment := range cache.Segments {
			cache.Segments[i] = withPart(segment)
			s.sizes[cache.Key] = s.sizes[cache.Key].with(segment)
		}
	}
	known := &pecanv1.Learned{Profiles: snapshot.Profiles, Orders: snapshot.Orders, Placements: snapshot.Placements, Histories: snapshot.Histories, Cachings: snapshot.Cachings}
	for fingerprint, of := range known.ByGraph() {
		s.learn(fingerprint, func(k *learnedGraph) { k.Learned = of })
	}
	for _, named := range snapshot.Workers {
		s.nameWorker(named.Number, named.Worker)
	}
	for _, stored := range snapshot.Jobs {
		job := &Job{StoredJob: stored}
		s.addJob(job)
		for _, epoch := range stored.Epochs {
			if err := s.restoreEpoch(job, epoch); err != nil {
				return nil, fmt.Errorf("parse snapshot: job %q: %w", job.JobId, err)
			}
		}
		// Whether a stream is settled depends on later streams and on other epochs.
		s.settleAll(job)
		stored.Epochs = nil
	}
	slices.SortFunc(s.ordered, func(a, b *Job) int { return cmp.Compare(a.Sequence, b.Sequence) })
	return s, nil
}

// restoreEpoch adds an epoch of a snapshot. Snapshots of version 1 list all streams, and have no numbers of epochs.
func (s *State) restoreEpoch(job *Job, stored *pecanv1.StoredEpoch) error {
	if stored.Opened == 0 {
		// Version 1 has all streams. No record opened as few epochs as are open, so these numbers are free.
		stored.Opened, stored.Total = uint64(len(s.opened))+1, uint32(len(stored.Streams))
		for i, stream := range stored.Streams {
			// The oldest snapshots have no assignment numbers.
			if stream.Consumer != "" && stream.Assignment == 0 {
				stream.Assignment = 1
			}
			if Private(job) && i == 0 {
				stored.Assignment = stream.Assignment
			}
		}
	}
	if stored.Total > maxStreams || s.opened[stored.Opened] != nil {
		return fmt.Errorf("epoch %d has %d streams, which are too many, or its number %d is that of another epoch", stored.Epoch, stored.Total, stored.Opened)
	}
	e := newEpoch(job, stored.Epoch, stored.Opened, stored.Total)
	e.Passes, e.Error, e.Order, e.OrderStreams, e.assignment = stored.Passes, stored.Error, stored.Order, stored.OrderStreams, stored.Assignment
	e.OrderFrom, e.OrderBelow, e.FailedInOrder = stored.OrderFrom, stored.OrderBelow, stored.FailedInOrder
	e.CachedStep = stored.CachedStep
	e.After, e.Joins, e.Carried, e.Carry = stored.After, stored.Joins, stored.Carried, stored.Carry
	e.delivered = bitmap(bytes.Clone(stored.Delivered)).resized(e.total)
	e.truncated = bitmap(bytes.Clone(stored.Truncated)).resized(e.total)
	e.sums.delivered, e.sums.truncated, e.sums.elements, e.sums.lost = e.delivered.count(), e.truncated.count(), stored.Elements, stored.Lost
	s.addEpoch(e)
	for _, stream := range stored.Streams {
		if stream.Stream >= e.total {
			return fmt.Errorf("epoch %d has stream %d, but only %d streams", e.Epoch, stream.Stream, e.total)
		}
		if stream.WorkerNumber > 0 {
			if stream.Worker = s.workers[stream.WorkerNumber]; stream.Worker == nil {
				return fmt.Errorf("epoch %d has a stream of worker %d, which has no name", e.Epoch, stream.WorkerNumber)
			}
		}
		fresh := &pecanv1.StoredStream{Stream: stream.Stream, Consumer: e.onlyConsumer(), Assignment: e.assignment}
		if proto.Equal(stream, fresh) {
			continue
		}
		if e.delivered.has(stream.Stream) {
			e.sums.delivered--
		}
		if e.truncated.has(stream.Stream) {
			e.sums.truncated--
		}
		s.put(e, stream.Stream, func(into *pecanv1.StoredStream) {
			proto.Reset(into)
			proto.Merge(into, stream)
			into.Worker = stream.Worker
		})
	}
	return nil
}

// stored returns an epoch as a snapshot has it.
func (e *Epoch) stored() *pecanv1.StoredEpoch {
	stored := &pecanv1.StoredEpoch{
		Epoch: e.Epoch, Passes: e.Passes, Error: e.Error, Order: e.Order, OrderStreams: e.OrderStreams, Opened: e.Opened, Total: e.total,
		Delivered: e.delivered, Truncated: e.truncated, Elements: e.sums.elements, Lost: e.sums.lost, Assignment: e.assignment,
		After: e.After, Joins: e.Joins, Carried: e.Carried, Carry: e.Carry, OrderFrom: e.OrderFrom, OrderBelow: e.OrderBelow, CachedStep: e.CachedStep,
		FailedInOrder: e.FailedInOrder,
	}
	for _, stream := range e.Active() {
		stored.Elements -= elementsOf(stream)
		stored.Lost -= lostOf(stream)
		if stream.WorkerNumber > 0 {
			address := stream.Worker
			stream.Worker = nil
			named := stream
			stream = proto.CloneOf(named)
			named.Worker = address
		}
		stored.Streams = append(stored.Streams, stream)
	}
	return stored
}

// Snapshot returns the whole state; equal states have equal snapshots. It shares memory with the state.
func (s *State) Snapshot() *pecanv1.Snapshot {
	snapshot := &pecanv1.Snapshot{
		Applied: s.applied, ClusterId: s.clusterID, Incarnation: s.incarnation, LastLease: s.lastLease, CachesUsedS: s.cachesUsedS,
	}
	for _, id := range slices.Sorted(maps.Keys(s.datasets)) {
		snapshot.Datasets = append(snapshot.Datasets, s.datasets[id])
	}
	for _, id := range slices.Sorted(maps.Keys(s.clients)) {
		snapshot.Clients = append(snapshot.Clients, s.clients[id])
	}
	for _, id := range slices.Sorted(maps.Keys(s.jobs)) {
		job := s.jobs[id]
		stored := &pecanv1.StoredJob{
			JobId: job.JobId, Name: job.Name, DatasetId: job.DatasetId, Options: job.Options, Plan: job.Plan, Sequence: job.Sequence,
			ClientIds: job.ClientIds, NextEpoch: job.NextEpoch, Closed: job.Closed, Error: job.Error, Placement: job.Placement, CacheDecision: job.CacheDecision,
		}
		for _, epoch := range job.Epochs {
			stored.Epochs = append(stored.Epochs, epoch.stored())
		}
		snapshot.Jobs = append(snapshot.Jobs, stored)
	}
	for _, key := range slices.Sorted(maps.Keys(s.caches)) {
		snapshot.Caches = append(snapshot.Caches, s.caches[key])
	}
	known := &pecanv1.Learned{}
	for _, fingerprint := range s.LearnedGraphs() {
		known.Append(s.learned[fingerprint].Learned)
	}
	snapshot.Profiles, snapshot.Orders, snapshot.Placements = known.Profiles, known.Orders, known.Placements
	snapshot.Histories, snapshot.Cachings = known.Histories, known.Cachings
	for _, number := range slices.Sorted(maps.Keys(s.workers)) {
		snapshot.Workers = append(snapshot.Workers, &pecanv1.StoredWorker{Number: number, Worker: s.workers[number]})
	}
	return snapshot
}

// Marshal returns the snapshot in bytes: equal states have equal bytes.
func (s *State) Marshal() ([]byte, error) {
	data, err := proto.MarshalOptions{Deterministic: true}.Marshal(s.Snapshot())
	if err != nil {
		return nil, fmt.Errorf("write snapshot: %w", err)
	}
	return data, nil
}

// Hash returns the SHA-256 of the state.
func (s *State) Hash() string {
	data, err := s.Marshal()
	if err != nil {
		return err.Error()
	}
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}
