package sim

import (
	"testing"
	"time"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/tests/sim/simnet"
)

// scenario is a disturbed run of one trainer. Its result must be that of an undisturbed run.
type scenario struct {
	options options
	data    *dataset
	epochs  int
	// pace and ahead default to a run of a few seconds whose elements wait on the workers.
	pace  time.Duration
	ahead int64
	// before runs before reading starts, during while the trainer reads.
	before, during func(*run)
	// after runs when everything was read.
	after func(*run)
}

// run is a running scenario.
type run struct {
	*cluster
	tr *trainer
}

// check runs the scenario in the two strictest modes, or with -short in mode exactly-once alone. `make slow` runs both.
func (s scenario) check(t *testing.T) {
	t.Helper()
	for name, mode := range map[string]pecanv1.Mode{"exactly once": pecanv1.Mode_MODE_EXACTLY_ONCE, "deterministic": pecanv1.Mode_MODE_DETERMINISTIC} {
		t.Run(name, func(t *testing.T) {
			if testing.Short() && mode == pecanv1.Mode_MODE_DETERMINISTIC {
				t.Skip("make slow runs it")
			}
			if s.data == nil {
				s.data = batches
			}
			if s.epochs == 0 {
				s.epochs = 2
			}
			if s.pace == 0 {
				s.pace = 50 * time.Millisecond
			}
			if s.ahead == 0 {
				s.ahead = 20_000
			}
			simulate(t, s.options, func(c *cluster) {
				r := &run{cluster: c, tr: c.join(0, wanted{dataset: s.data, mode: mode, pace: s.pace, ahead: s.ahead, checksum: true})}
				if s.before != nil {
					s.before(r)
				}
				wait := r.tr.reading(s.epochs)
				if s.during != nil {
					s.during(r)
				}
				wait()
				c.repairAll()
				if s.after != nil {
					s.after(r)
				}
				c.ledger.audit(s.data, promiseOf(mode), s.epochs)
			})
		})
	}
}

// need fails the test if a fault had no effect: the test would have shown nothing.
func (r *run) need(kinds ...simnet.Fault) {
	r.t.Helper()
	for _, kind := range kinds {
		if r.net.Hits()[kind] == 0 {
			r.t.Errorf("this fault had no effect: %s", kind)
		}
	}
}

// needMove waits until the trainer has requested a stream under a newer lease.
func (r *run) needMove() {
	r.t.Helper()
	r.eventually("a stream moves", time.Minute, func() bool { return r.ledger.moved(r.tr) > 0 })
}

// crash lets the dispatcher die at the next write of such a record, and starts it again.
func (r *run) crash(at point, only func(*pecanv1.Record) bool) {
	r.t.Helper()
	r.disk.only.Store(&only)
	if !r.crashAt(at, killed, time.Hour) {
		r.t.Error("the dispatcher did not make the write at which it was to die")
		return
	}
	r.disk.only.Store(nil)
	time.Sleep(time.Second)
	r.startDispatcher()
}

// points are where the dispatcher dies around a write: K1, K2 and K3.
var points = map[string]point{"before the write": beforeWrite, "before the sync": beforeSync, "before the response": beforeResponse}

func opensEpoch(r *pecanv1.Record) bool  { return r.GetEpochOpened() != nil }
func createsJob(r *pecanv1.Record) bool  { return r.GetJobCreated() != nil }
func addsDataset(r *pecanv1.Record) bool { return r.GetDatasetAdded() != nil }
func closesEpoch(r *pecanv1.Record) bool { return r.GetEpochClosed() != nil }
func removesJob(r *pecanv1.Record) bool  { return r.GetJobRemoved() != nil }
func (r *run) elements() int             { return r.jobs[r.tr.job.ID()].elements() }

// The disk writes lists. The journal of a cluster has their entries.
func grantsLease(r *pecanv1.Record) bool {
	return r.GetLeasesGranted() != nil || r.GetLeaseGranted() != nil
}

func endsStream(r *pecanv1.Record) bool {
	return r.GetStreamsProduced() != nil || r.GetStreamProduced() != nil
}

func deliversStream(r *pecanv1.Record) bool {
	return r.GetStreamsDelivered() != nil || r.GetStreamDelivered() != nil
}
