package dispatcher_test

import (
	"flag"
	"fmt"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/dispatcher"
	"github.com/pecan-ml/pecan/service/dispatcher/core/durable"
	"github.com/pecan-ml/pecan/service/store"
)

var replayed = flag.Int("replayed", 1_000_000, "how many records BenchmarkReplay writes and replays")

// epochRecords returns the records of one epoch of a private job with 16 streams.
func epochRecords(job, client string, epoch, lease uint64) []*pecanv1.Record {
	worker := &pecanv1.WorkerAddress{WorkerId: "w-0123456789abcdef", Tcp: "worker-17.example:6060", Unix: "@pecan-0123456789abcdef", HostId: "0123456789abcdef"}
	records := []*pecanv1.Record{
		{Kind: &pecanv1.Record_EpochOpened{EpochOpened: &pecanv1.EpochOpened{JobId: job, Epoch: epoch, Streams: 16}}},
		{Kind: &pecanv1.Record_EpochJoined{EpochJoined: &pecanv1.EpochJoined{JobId: job, Epoch: epoch, ClientId: client, RequestId: fmt.Sprint("request-", epoch)}}},
	}
	for stream := range uint32(16) {
		id := &pecanv1.StreamId{JobId: job, Epoch: epoch, Stream: stream}
		lease++
		records = append(records,
			&pecanv1.Record{Kind: &pecanv1.Record_LeaseGranted{LeaseGranted: &pecanv1.LeaseGranted{Id: id, Lease: lease, Worker: worker}}},
			&pecanv1.Record{Kind: &pecanv1.Record_StreamProduced{StreamProduced: &pecanv1.StreamProduced{Id: id, Lease: lease, Count: 4711}}},
			&pecanv1.Record{Kind: &pecanv1.Record_StreamDelivered{StreamDelivered: &pecanv1.StreamDelivered{Id: id, Count: 4711}}},
			&pecanv1.Record{Kind: &pecanv1.Record_LeaseLost{LeaseLost: &pecanv1.LeaseLost{Id: id, Lease: lease, Cause: pecanv1.LeaseLost_MOVED, Why: "not needed any more"}}},
		)
	}
	return append(records,
		&pecanv1.Record{Kind: &pecanv1.Record_EpochLeft{EpochLeft: &pecanv1.EpochLeft{JobId: job, Epoch: epoch, ClientId: client}}},
		&pecanv1.Record{Kind: &pecanv1.Record_EpochClosed{EpochClosed: &pecanv1.EpochClosed{JobId: job, Epoch: epoch, Delivered: true, Elements: 16 * 4711}}},
	)
}

// writeHistory appends records of many epochs to a store, and gives their state.
func writeHistory(t testing.TB, s *store.Store, records int) *durable.State {
	t.Helper()
	const job, client = "j-0123456789abcdef01234567", "trainer-0123456789abcdef"
	state := durable.NewState()
	history := []*pecanv1.Record{
		{Kind: &pecanv1.Record_Started{Started: &pecanv1.DispatcherStarted{ClusterId: "c-1"}}},
		{Kind: &pecanv1.Record_ClientJoined{ClientJoined: &pecanv1.ClientJoined{ClientId: client}}},
		{Kind: &pecanv1.Record_JobCreated{JobCreated: &pecanv1.JobCreated{JobId: job, Plan: &pecanv1.Plan{NumStreams: 16}}}},
		{Kind: &pecanv1.Record_JobJoined{JobJoined: &pecanv1.JobJoined{JobId: job, ClientId: client}}},
	}
	for epoch, lease := uint64(0), uint64(0); records > 0; epoch, lease = epoch+1, lease+16 {
		history = append(history, epochRecords(job, client, epoch, lease)...)
		history = history[:min(len(history), records)]
		if len(history) < 1000 && len(history) < records {
			continue
		}
		batch := make([][]byte, len(history))
		for i, record := range history {
			var err error
			if batch[i], err = proto.Marshal(record); err != nil {
				t.Fatal(err)
			}
			if err := state.Apply(record); err != nil {
				t.Fatal(err)
			}
		}
		if err := s.Append(batch); err != nil {
			t.Fatal(err)
		}
		records -= len(history)
		history = nil
	}
	return state
}

// replay opens a store and applies its records, and returns the time of both.
func replay(t testing.TB, dir string) (s *store.Store, state *durable.State, opened, applied time.Duration) {
	t.Helper()
	begun := time.Now()
	s, err := store.Open(store.Options{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	opened = time.Since(begun)
	begun = time.Now()
	if state, _, err = dispatcher.Replay(s); err != nil {
		t.Fatal(err)
	}
	return s, state, opened, time.Since(begun)
}

// X1, D10: the replayed state equals the live state, also for a long history.
func TestX1TheReplayOfALongHistoryIsTheLiveState(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "work")
	s := openStore(t, dir)
	live := writeHistory(t, s, 20_000)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s, state, _, _ := replay(t, dir)
	defer s.Close()
	if state.Hash() != live.Hash() || state.Applied() != 20_000 {
		t.Fatalf("%d records give another state than the live one", state.Applied())
	}
}

// BenchmarkReplay writes -replayed records without a snapshot. It then opens and replays them, as a start does.
func BenchmarkReplay(b *testing.B) {
	dir := filepath.Join(b.TempDir(), "work")
	s, err := store.Open(store.Options{Dir: dir})
	if err != nil {
		b.Fatal(err)
	}
	begun := time.Now()
	live := writeHistory(b, s, *replayed)
	wrote, size := time.Since(begun), s.Metrics().Bytes
	if err := s.Close(); err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		var before, after runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		s, state, opened, applied := replay(b, dir)
		runtime.ReadMemStats(&after)
		if state.Hash() != live.Hash() {
			b.Fatal("another state than the live one")
		}
		b.ReportMetric(opened.Seconds(), "s-to-open")
		b.ReportMetric(applied.Seconds(), "s-to-replay")
		b.ReportMetric(float64(after.Sys-before.Sys)/(1<<20), "MiB-more-of-the-system")
		if err := s.Close(); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(wrote.Seconds(), "s-to-write")
	b.ReportMetric(float64(size)/(1<<20), "MiB-on-disk")
}
