package sim

import (
	"cmp"
	"slices"

	"github.com/cockroachdb/pebble/v2/vfs"
	"google.golang.org/protobuf/proto"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/dispatcher/core/journaltest"
	"github.com/pecan-ml/pecan/service/store"
)

// journal returns the records that a starting dispatcher would find after the last snapshot. The entries of lists are
// records of their own.
func (c *cluster) journal() (records []*pecanv1.Record) {
	c.t.Helper()
	var err error
	c.disk.outside.run(func() {
		var s *store.Store
		if s, err = store.Open(store.Options{Dir: "work", FS: c.disk.mem.CrashClone(vfs.CrashCloneCfg{})}); err != nil {
			return
		}
		lists := journaltest.NewLists(nil)
		err = s.Load(func(data []byte) error {
			snapshot := new(pecanv1.Snapshot)
			err := proto.Unmarshal(data, snapshot)
			lists = journaltest.NewLists(snapshot)
			return err
		}, func(data []byte) error {
			record := new(pecanv1.Record)
			if err := proto.Unmarshal(data, record); err != nil {
				return err
			}
			singles, err := lists.Next(record)
			records = append(records, singles...)
			return err
		})
		if closed := s.Close(); err == nil {
			err = closed
		}
	})
	if err != nil {
		c.t.Errorf("read the journal: %v", err)
	}
	return records
}

// inspect checks what must hold in every journal. Each intent had one effect, and leases only grow. A stream has one lease
// at a time, and did not end before its last element. In mode at-most-once a stream may be truncated and then counts as
// delivered, but it is never recorded as produced.
func (c *cluster) inspect() {
	leased, delivered, requests, last := map[pecanv1.StreamKey]uint64{}, map[pecanv1.StreamKey]bool{}, map[string]bool{}, uint64(0)
	once := func(what, key string) {
		if requests[what+key] {
			c.t.Errorf("the journal has %s of %s twice", what, key)
		}
		requests[what+key] = true
	}
	whole := func(id *pecanv1.StreamId, count uint64) {
		if d := c.jobs[id.GetJobId()]; d != nil && int(count) != len(d.stream(int64(id.GetStream()))) {
			c.t.Errorf("stream %v is recorded with %d elements, it has %d", id, count, len(d.stream(int64(id.GetStream()))))
		}
	}
	for _, record := range c.journal() {
		switch kind := record.GetKind().(type) {
		case *pecanv1.Record_DatasetAdded:
			once("the dataset", kind.DatasetAdded.GetDataset().GetDatasetId())
		case *pecanv1.Record_JobCreated:
			once("the job", kind.JobCreated.GetJobId())
		case *pecanv1.Record_JobJoined:
			// A client that was removed asks for its job again, and gets another one.
			if c.options.clientTimeout == 0 {
				once("the request", kind.JobJoined.GetRequestId())
			}
		case *pecanv1.Record_EpochOpened:
			// An epoch that begins at a position may have been read and closed before.
			if opened := kind.EpochOpened; opened.GetPosition() != nil {
				for number := range opened.GetStreams() {
					key := pecanv1.StreamKey{Job: opened.GetJobId(), Epoch: opened.GetEpoch(), Stream: number}
					delete(leased, key)
					delete(delivered, key)
				}
			}
		case *pecanv1.Record_EpochJoined:
			once("the request", kind.EpochJoined.GetRequestId())
		case *pecanv1.Record_LeaseGranted:
			granted := kind.LeaseGranted
			if granted.GetLease() <= last {
				c.t.Errorf("lease %d was granted after lease %d", granted.GetLease(), last)
			}
			last = granted.GetLease()
			if before := leased[granted.GetId().Key()]; before > 0 {
				c.t.Errorf("stream %v was leased under %d while it was under %d", granted.GetId(), granted.GetLease(), before)
			}
			leased[granted.GetId().Key()] = granted.GetLease()
		case *pecanv1.Record_LeaseLost:
			delete(leased, kind.LeaseLost.GetId().Key())
		case *pecanv1.Record_StreamProduced:
			whole(kind.StreamProduced.GetId(), kind.StreamProduced.GetCount())
		case *pecanv1.Record_StreamDelivered:
			id := kind.StreamDelivered.GetId()
			if !c.loses[id.GetJobId()] {
				whole(id, kind.StreamDelivered.GetCount())
			}
			if delivered[id.Key()] {
				c.t.Errorf("stream %v was delivered twice", id)
			}
			delivered[id.Key()] = true
			// With its delivery a stream loses its lease, if no closing stream needs its remainder. No plan here has one.
			delete(leased, id.Key())
		}
	}
}

// abandonedByTrainers counts the streams that trainers abandoned before the dispatcher did.
func (c *cluster) abandonedByTrainers() (n int) {
	truncated := map[pecanv1.StreamKey]bool{}
	for _, record := range c.journal() {
		if lost := record.GetLeaseLost(); lost.GetTruncated() {
			truncated[lost.GetId().Key()] = true
		}
		if reported := record.GetStreamDelivered(); reported.GetTruncated() && !truncated[reported.GetId().Key()] {
			n++
		}
	}
	return n
}

// granted returns the leases of the journal.
func granted(records []*pecanv1.Record) []*pecanv1.LeaseGranted {
	var leases []*pecanv1.LeaseGranted
	for _, record := range records {
		if lease := record.GetLeaseGranted(); lease != nil {
			leases = append(leases, lease)
		}
	}
	slices.SortStableFunc(leases, func(a, b *pecanv1.LeaseGranted) int { return cmp.Compare(a.GetId().GetStream(), b.GetId().GetStream()) })
	return leases
}
