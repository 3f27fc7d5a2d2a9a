package dispatcher_test

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/proto/reason"
	"github.com/pecan-ml/pecan/service/store"
)

// fullStore has no space on demand.
type fullStore struct {
	*store.Memory
	full atomic.Bool
}

func (f *fullStore) Append(records [][]byte) error {
	if f.full.Load() && len(records) > 0 {
		return store.ErrFull
	}
	return f.Memory.Append(records)
}

func (f *fullStore) PutGraph(fingerprint string, graph []byte) error {
	if f.full.Load() {
		return store.ErrFull
	}
	return f.Memory.PutGraph(fingerprint, graph)
}

// D5: on a full disk nothing new starts, running streams continue, and nobody times out. With space again
// everything continues by itself, and repeated requests happened once.
func TestD5AFullDiskBlocksNewWorkUntilThereIsSpace(t *testing.T) {
	kept, registry := &fullStore{Memory: store.NewMemory()}, prometheus.NewRegistry()
	s := startService(t, serviceOptions{store: kept, metrics: registry})
	w := s.worker(workerHello("w1", 4))
	dataset := s.register(&pecanv1.Plan{NumStreams: 2})
	job := s.job("c1", "", dataset, nil)
	epoch := s.open("c1", job.JobId, 0)
	watch := s.watch("c1", job.JobId, epoch.Epoch)
	first, second := w.start(), w.start()
	watch.until("with both streams leased", ready)

	s.clock.Advance(500 * time.Millisecond)
	s.job("c1", "", dataset, nil)
	kept.full.Store(true)
	w.ended(first, 10, 0)
	finish := func() error { return s.finish(s.ctx(), "c1", second.Id, second.Lease, 7) }
	wantReason(t, finish(), reason.StoreFull)
	_, err := s.client.CreateJob(s.ctx(), &pecanv1.CreateJobRequest{RequestId: "r", ClientId: "c2", DatasetId: dataset})
	wantReason(t, err, reason.StoreFull)
	_, err = s.upload(&pecanv1.RegisterDatasetRequest_Header{Spec: spec, GraphBytes: 2}, []byte{16, 3})
	wantReason(t, err, reason.StoreFull)
	_, err = s.tryWorker(workerHello("w2", 4))
	wantReason(t, err, reason.StoreFull)
	if full, _ := sum(t, registry, "pecan_dispatcher_store_full", ""); full != 1 {
		t.Errorf("the metric of a full disk is %v", full)
	}
	if s.d.Ready() == nil {
		t.Error("a dispatcher on a full disk says that it is ready")
	}
	// This is far longer than any timeout. Reading the status does not let time pass either.
	for range 300 {
		s.clock.Advance(500 * time.Millisecond)
		if _, err := s.client.Status(s.ctx(), &pecanv1.StatusRequest{}); err != nil {
			t.Fatal(err)
		}
	}
	w.heartbeat()
	if _, err := s.client.ClientHeartbeat(s.ctx(), &pecanv1.ClientHeartbeatRequest{ClientId: "c1", JobIds: []string{job.JobId}}); err != nil {
		t.Fatalf("a heartbeat: %v", err)
	}

	kept.full.Store(false)
	s.clock.Advance(500 * time.Millisecond)
	watch.until("with the first stream made", func(u *pecanv1.EpochUpdate) bool { return u.Streams[0].Ended })
	for range 4 {
		s.clock.Advance(500 * time.Millisecond)
		if _, err := s.client.Status(s.ctx(), &pecanv1.StatusRequest{}); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 {
		if err := finish(); err != nil {
			t.Fatalf("repeated report: %v", err)
		}
	}
	status, err := s.client.Status(s.ctx(), &pecanv1.StatusRequest{})
	if err != nil || len(status.Workers) != 1 || status.Workers[0].State != "connected" || status.Clients != 1 || len(status.Jobs) != 1 {
		t.Fatalf("after the full disk: %v %v", status, err)
	}
	if e := status.Jobs[0].Epochs[0]; e.StreamsDone != 1 || e.Elements != 7 {
		t.Fatalf("epoch %v", e)
	}
	if lost, _ := sum(t, registry, "pecan_dispatcher_leases_lost_total", `"died"`); lost != 0 {
		t.Errorf("%v leases died", lost)
	}
	if full, _ := sum(t, registry, "pecan_dispatcher_store_full", ""); full != 0 || s.d.Ready() != nil {
		t.Errorf("full %v, %v", full, s.d.Ready())
	}
	s.register(&pecanv1.Plan{NumStreams: 3})
	s.worker(workerHello("w2", 4))
}
