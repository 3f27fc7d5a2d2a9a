// Package journaltest reads the records of a dispatcher's journal for tests.
package journaltest

import (
	"fmt"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
)

// Lists returns the entries of list records as records of one stream each. It must see all records in order, or a snapshot
// and the records after it.
type Lists struct {
	number  uint64
	opened  map[uint64]*pecanv1.StreamId
	workers map[uint32]*pecanv1.WorkerAddress
}

// NewLists returns Lists before the first record, or after those of a snapshot. The snapshot may be nil.
func NewLists(snapshot *pecanv1.Snapshot) *Lists {
	l := &Lists{number: snapshot.GetApplied(), opened: map[uint64]*pecanv1.StreamId{}, workers: map[uint32]*pecanv1.WorkerAddress{}}
	for _, job := range snapshot.GetJobs() {
		for _, epoch := range job.GetEpochs() {
			l.opened[epoch.GetOpened()] = &pecanv1.StreamId{JobId: job.GetJobId(), Epoch: epoch.GetEpoch()}
		}
	}
	for _, named := range snapshot.GetWorkers() {
		l.workers[named.GetNumber()] = named.GetWorker()
	}
	return l
}

// Next returns the next record, or its entries if it is a list.
func (l *Lists) Next(record *pecanv1.Record) (singles []*pecanv1.Record, err error) {
	l.number++
	if opened := record.GetEpochOpened(); opened != nil {
		l.opened[l.number] = &pecanv1.StreamId{JobId: opened.GetJobId(), Epoch: opened.GetEpoch()}
	}
	if named := record.GetWorkerNamed(); named != nil {
		l.workers[named.GetNumber()] = named.GetWorker()
	}
	granted, assigned, produced, delivered := record.GetLeasesGranted(), record.GetConsumersAssigned(), record.GetStreamsProduced(), record.GetStreamsDelivered()
	switch {
	case granted != nil:
		workers, err := pecanv1.Numbers[uint32](granted.GetWorkers())
		if err != nil {
			return nil, err
		}
		return l.each(granted.GetOpened(), granted.GetStreams(), func(i int, id *pecanv1.StreamId) *pecanv1.Record {
			return &pecanv1.Record{Kind: &pecanv1.Record_LeaseGranted{LeaseGranted: &pecanv1.LeaseGranted{
				Id: id, Lease: granted.GetFirstLease() + uint64(i), Worker: l.workers[workers[i]], Restart: granted.GetRestart(),
			}}}
		})
	case assigned != nil:
		assignments, err := pecanv1.Numbers[uint64](assigned.GetAssignments())
		if err != nil {
			return nil, err
		}
		return l.each(assigned.GetOpened(), assigned.GetStreams(), func(i int, id *pecanv1.StreamId) *pecanv1.Record {
			return &pecanv1.Record{Kind: &pecanv1.Record_ConsumerAssigned{ConsumerAssigned: &pecanv1.ConsumerAssigned{
				Id: id, ClientId: assigned.GetClientId(), StartIndex: valueAt(assigned.GetStartIndexes(), i), Assignment: assignments[i],
			}}}
		})
	case produced != nil:
		leases, err := pecanv1.Numbers[uint64](produced.GetLeases())
		if err != nil {
			return nil, err
		}
		return l.each(produced.GetOpened(), produced.GetStreams(), func(i int, id *pecanv1.StreamId) *pecanv1.Record {
			return &pecanv1.Record{Kind: &pecanv1.Record_StreamProduced{StreamProduced: &pecanv1.StreamProduced{
				Id: id, Lease: leases[i], Count: valueAt(produced.GetCounts(), i), RemainderRows: valueAt(produced.GetRemainderRows(), i),
			}}}
		})
	case delivered != nil:
		return l.each(delivered.GetOpened(), delivered.GetStreams(), func(i int, id *pecanv1.StreamId) *pecanv1.Record {
			return &pecanv1.Record{Kind: &pecanv1.Record_StreamDelivered{StreamDelivered: &pecanv1.StreamDelivered{Id: id, Count: valueAt(delivered.GetCounts(), i)}}}
		})
	}
	return []*pecanv1.Record{record}, nil
}

func (l *Lists) each(opened uint64, differences []int64, single func(int, *pecanv1.StreamId) *pecanv1.Record) (singles []*pecanv1.Record, err error) {
	epoch := l.opened[opened]
	if epoch == nil {
		return nil, fmt.Errorf("record %d is a list of an epoch that record %d did not open", l.number, opened)
	}
	streams, err := pecanv1.Numbers[uint32](differences)
	if err != nil {
		return nil, err
	}
	for i, stream := range streams {
		singles = append(singles, single(i, &pecanv1.StreamId{JobId: epoch.JobId, Epoch: epoch.Epoch, Stream: stream}))
	}
	return singles, nil
}

// valueAt returns a value of a list. Without values all are 0.
func valueAt(list []uint64, i int) uint64 {
	if len(list) == 0 {
		return 0
	}
	return list[i]
}
