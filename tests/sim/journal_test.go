package sim

import (
	"cmp"
	"slices"

	"github.com/cockroachdb/pebble/v2/vfs"
	"google.golang.org/protobuf/proto"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/store"
)

// journal returns the records that a starting dispatcher would find after the last snapshot.
func (c *cluster) journal() (records []*pecanv1.Record) {
	c.t.Helper()
	var err error
	c.disk.outside.run(func() {
		var s *store.Store
		if s, err = store.Open(store.Options{Dir: "work", FS: c.disk.mem.CrashClone(vfs.CrashCloneCfg{})}); err != nil {
			return
		}
		err = s.Load(func([]byte) error { return nil }, func(data []byte) error {
			record := new(pecanv1.Record)
			records = append(records, record)
			return proto.Unmarshal(data, record)
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

// inspect checks what must hold in every journal: each intent had one effect, leases only grow, a stream has one
// lease at a time, and no stream ended before its last element. In mode at-most-once a stream may be truncated
// and then counts as delivered, but it is never recorded as produced.
func (c *cluster) inspect() {
	type stream struct {
		job    string
		epoch  uint64
		number uint32
	}
	of := func(id *pecanv1.StreamId) stream { return stream{id.GetJobId(), id.GetEpoch(), id.GetStream()} }
	leased, delivered, requests, last := map[stream]uint64{}, map[stream]bool{}, map[string]bool{}, uint64(0)
	once := func(what, key string) {
		if requests[what+key] {
			c.t.Errorf("the journal has %s of %s twice", what, key)
		}
		requests[what+key] = true
	}
	whole := func(id *pecanv1.StreamId, count uint64) {
		if d := c.jobs[id.GetJobId()]; d != nil && int(count) != len(d.stream(id.GetStream())) {
			c.t.Errorf("stream %v is recorded with %d elements, it has %d", id, count, len(d.stream(id.GetStream())))
		}
	}
	for _, record := range c.journal() {
		switch kind := record.GetKind().(type) {
		case *pecanv1.Record_DatasetAdded:
			once("the dataset", kind.DatasetAdded.GetDataset().GetDatasetId())
		case *pecanv1.Record_JobCreated:
			once("the job", kind.JobCreated.GetJobId())
		case *pecanv1.Record_JobJoined:
			once("the request", kind.JobJoined.GetRequestId())
		case *pecanv1.Record_EpochOpened:
			// An epoch that begins at a position may have been read and closed before.
			if opened := kind.EpochOpened; opened.GetPosition() != nil {
				for number := range opened.GetStreams() {
					delete(leased, stream{opened.GetJobId(), opened.GetEpoch(), number})
					delete(delivered, stream{opened.GetJobId(), opened.GetEpoch(), number})
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
			if before := leased[of(granted.GetId())]; before > 0 {
				c.t.Errorf("stream %v was leased under %d while it was under %d", granted.GetId(), granted.GetLease(), before)
			}
			leased[of(granted.GetId())] = granted.GetLease()
		case *pecanv1.Record_LeaseLost:
			delete(leased, of(kind.LeaseLost.GetId()))
		case *pecanv1.Record_StreamProduced:
			whole(kind.StreamProduced.GetId(), kind.StreamProduced.GetCount())
		case *pecanv1.Record_StreamDelivered:
			id := kind.StreamDelivered.GetId()
			if !c.loses[id.GetJobId()] {
				whole(id, kind.StreamDelivered.GetCount())
			}
			if delivered[of(id)] {
				c.t.Errorf("stream %v was delivered twice", id)
			}
			delivered[of(id)] = true
		}
	}
}

// abandonedByTrainers counts the streams that trainers abandoned before the dispatcher did.
func (c *cluster) abandonedByTrainers() (n int) {
	truncated := map[string]bool{}
	for _, record := range c.journal() {
		if lost := record.GetLeaseLost(); lost.GetTruncated() {
			truncated[lost.GetId().String()] = true
		}
		if reported := record.GetStreamDelivered(); reported.GetTruncated() && !truncated[reported.GetId().String()] {
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
