package dispatcher_test

import (
	"crypto/rand"
	"errors"
	"log/slog"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/proto/reason"
	"github.com/pecan-ml/pecan/service/dispatcher"
	"github.com/pecan-ml/pecan/service/internal/clock"
	"github.com/pecan-ml/pecan/service/store"
)

func openStore(t *testing.T, dir string) *store.Store {
	t.Helper()
	s, err := store.Open(store.Options{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// No acknowledged state is lost: datasets, jobs, epochs, leases, deliveries, and answers to requests.
func TestARestartKeepsAllAcknowledgedState(t *testing.T) {
	for name, every := range map[string]int{"from records": 1 << 30, "from snapshots": 2} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "work")
			compact := func(c *dispatcher.Config) { c.CompactEvery = every }
			kept := openStore(t, dir)
			s := startService(t, serviceOptions{store: kept, change: compact})
			dataset := s.register(&pecanv1.Plan{NumStreams: 2})
			job := s.job("c1", "train", dataset, nil)
			if !job.Durable {
				t.Fatal("the job is not durable")
			}
			s.open("c1", job.JobId, 0)
			w := s.worker(workerHello("w1", 4))
			first, second := w.start(), w.start()
			w.ended(first, 10, 0)
			s.watch("c1", job.JobId, 0).until("with a stream made", func(u *pecanv1.EpochUpdate) bool { return u.Streams[0].Ended })
			if err := s.finish(s.ctx(), "c1", first.Id, first.Lease, 10); err != nil {
				t.Fatal(err)
			}
			cluster := s.d.ClusterID()
			graph := s.fetch(dataset)
			s.stop()
			if err := kept.Close(); err != nil {
				t.Fatal(err)
			}

			kept = openStore(t, dir)
			defer kept.Close()
			s = startService(t, serviceOptions{store: kept, change: compact})
			if s.d.ClusterID() != cluster {
				t.Fatalf("cluster %s, was %s", s.d.ClusterID(), cluster)
			}
			if string(s.fetch(dataset)) != string(graph) {
				t.Fatal("another graph")
			}
			again := s.job("c1", "train", dataset, nil)
			if again.JobId != job.JobId || again.Created || !proto.Equal(again.Options, job.Options) || !proto.Equal(again.Plan, job.Plan) {
				t.Fatalf("job %v, was %v", again, job)
			}
			if epoch := s.open("c1", job.JobId, 0); epoch.Epoch != 0 || epoch.AlreadyDelivered {
				t.Fatalf("epoch %v", epoch)
			}
			watch := s.watch("c1", job.JobId, 0)
			update := watch.until("at all", func(*pecanv1.EpochUpdate) bool { return true })
			if update.Delivered != 1 || len(update.Streams) != 1 || update.Streams[0].Lease != second.Lease || watch.workerOf(update.Streams[0]).GetWorkerId() != "w1" {
				t.Fatalf("update %v", update)
			}
			hello := workerHello("w1", 4)
			hello.ClusterId = cluster
			hello.Held = []*pecanv1.HeldStream{{Id: second.Id, Lease: second.Lease}, {Id: first.Id, Lease: first.Lease}}
			w = s.worker(hello)
			if stop := w.stopped(); stop.Id.Stream != first.Id.Stream {
				t.Fatalf("stop %v", stop)
			}
			w.ended(second, 7, 0)
			s.stop()
		})
	}
}

// A client that watches its pass during a restart sees growing versions.
func TestVersionsGrowOverARestart(t *testing.T) {
	dir := t.TempDir()
	kept := openStore(t, dir)
	s := startService(t, serviceOptions{store: kept})
	job := s.begun(1)
	before := s.watch("c1", job.JobId, 0).until("at all", func(*pecanv1.EpochUpdate) bool { return true })
	s.stop()
	if err := kept.Close(); err != nil {
		t.Fatal(err)
	}
	kept = openStore(t, dir)
	defer kept.Close()
	s = startService(t, serviceOptions{store: kept})
	after := s.watch("c1", job.JobId, 0).until("at all", func(*pecanv1.EpochUpdate) bool { return true })
	if after.Version <= before.Version {
		t.Fatalf("version %d after %d", after.Version, before.Version)
	}
	s.stop()
}

// failingStore stops writing on demand.
type failingStore struct {
	*store.Memory
	broken atomic.Bool
}

func (f *failingStore) Append(records [][]byte) error {
	if f.broken.Load() && len(records) > 0 {
		return errors.New("no space left on device")
	}
	return nil
}

// If a record cannot be written, it is not acknowledged, and the service ends.
func TestAFailingStoreEndsTheService(t *testing.T) {
	kept := &failingStore{Memory: store.NewMemory()}
	s := startService(t, serviceOptions{store: kept})
	dataset := s.register(&pecanv1.Plan{NumStreams: 1})
	kept.broken.Store(true)
	_, err := s.client.CreateJob(s.ctx(), &pecanv1.CreateJobRequest{RequestId: "r", ClientId: "c1", DatasetId: dataset})
	wantReason(t, err, reason.Unavailable)
	select {
	case err := <-s.served:
		if err == nil {
			t.Fatal("the service ended without an error")
		}
		s.served <- nil
	case <-time.After(wait):
		t.Fatal("the service goes on without its store")
	}
}

func TestABrokenStoreIsRefusedAtTheStart(t *testing.T) {
	kept := openStore(t, t.TempDir())
	defer kept.Close()
	if err := kept.Append([][]byte{[]byte("\xff\xff no record")}); err != nil {
		t.Fatal(err)
	}
	_, err := dispatcher.New(dispatcher.DefaultConfig(), dispatcher.Deps{
		Store: kept, Graphs: planGraphs{}, Clock: clock.NewFake(), Rand: rand.Reader, Log: slog.New(slog.DiscardHandler),
	})
	if !errors.Is(err, store.ErrDamaged) {
		t.Fatalf("got %v", err)
	}
}

// K5: a dispatcher that died between storing a graph and recording its dataset leaves a graph without owner,
// whole or in part. The next start removes it, and nothing else.
func TestK5AGraphWithoutItsDatasetIsRemovedAtTheStart(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "work")
	kept := openStore(t, dir)
	s := startService(t, serviceOptions{store: kept})
	dataset := s.register(&pecanv1.Plan{NumStreams: 1})
	graph := s.fetch(dataset)
	s.stop()
	if err := kept.PutGraph("orphan", make([]byte, 3<<20)); err != nil {
		t.Fatal(err)
	}
	if err := kept.Close(); err != nil {
		t.Fatal(err)
	}
	kept = openStore(t, dir)
	defer kept.Close()
	if all, err := kept.Graphs(); err != nil || len(all) != 2 {
		t.Fatal(all, err)
	}
	s = startService(t, serviceOptions{store: kept})
	defer s.stop()
	if all, err := kept.Graphs(); err != nil || len(all) != 1 {
		t.Fatal(all, err)
	}
	if string(s.fetch(dataset)) != string(graph) {
		t.Fatal("another graph")
	}
}
