package client

import (
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pecan-ml/pecan/native/client/epoch"
	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/proto/reason"
)

func TestAnOutageIsATemporaryTypedError(t *testing.T) {
	w := startWorker(t, same(testStream{count: 10}))
	d := startDispatcher(t)
	d.updateOf = func(uint64) *pecanv1.EpochUpdate {
		return &pecanv1.EpochUpdate{Waiting: "no worker is registered"}
	}
	it := open(t, d).Open(IterOptions{Timeout: 150 * time.Millisecond})
	eventually(t, "the dispatcher's reason is shown", func() bool { return waiting(it) == "no worker is registered" })
	if _, status, _ := it.NextElement(10 * time.Millisecond); status != NotYet {
		t.Errorf("without a worker: %v", status)
	}
	d.stop()
	began := time.Now()
	var err error
	eventually(t, "the outage is an error", func() bool {
		var status Status
		_, status, err = it.NextElement(20 * time.Millisecond)
		return status == Failed
	})
	if !reason.Is(err, reason.Unavailable) || !strings.Contains(err.Error(), d.addr) || time.Since(began) < 150*time.Millisecond {
		t.Errorf("after %v: %v", time.Since(began), err)
	}
	d.updateOf = spread(1, w)
	d.listen(d.addr)
	var all []got
	eventually(t, "it goes on", func() bool {
		rest, err := read(t, it)
		all = append(all, rest...)
		return err == nil
	})
	wantAll(t, all, 10)
}

// failure waits until a Next fails.
func failure(t *testing.T, it *Iteration) (err error) {
	t.Helper()
	eventually(t, "the outage is an error", func() bool {
		var status Status
		_, status, err = it.NextElement(10 * time.Millisecond)
		return status == Failed
	})
	return err
}

func TestNoWorkersIsATemporaryTypedError(t *testing.T) {
	const limit = 150 * time.Millisecond
	d := startDispatcher(t)
	d.updateOf = func(uint64) *pecanv1.EpochUpdate {
		return &pecanv1.EpochUpdate{Waiting: "no worker is registered", NoWorkers: true}
	}
	it := open(t, d).Open(IterOptions{Timeout: limit})
	// The next call waits for the whole timeout again.
	for range 2 {
		began := time.Now()
		err := failure(t, it)
		if !reason.Is(err, reason.NoWorkers) || !strings.Contains(err.Error(), "no worker is registered") || !strings.Contains(err.Error(), d.addr) || time.Since(began) < limit {
			t.Errorf("after %v: %v", time.Since(began), err)
		}
	}
	d.update(func() { d.updateOf = spread(1, startWorker(t, same(testStream{count: 10}))) })
	all, err := read(t, it)
	if err != nil {
		t.Fatal(err)
	}
	wantAll(t, all, 10)
}

// The dispatcher cannot reach the worker, so the worker never receives the lease. The reader still reaches the worker.
func TestAWorkerThatDeniesItsStreamsCountsAsAbsent(t *testing.T) {
	const limit = time.Second
	hold := make(chan struct{})
	var asked atomic.Int64
	w := startWorker(t, same(testStream{count: 10, hold: hold}), func(w *testWorker) {
		w.refuse = func(*pecanv1.OpenStream) error {
			if asked.Add(1) == 1 {
				return reason.New(reason.StreamUnknown, "not held")
			}
			return nil
		}
	})
	d := startDispatcher(t)
	d.updateOf = func(version uint64) *pecanv1.EpochUpdate {
		u := spread(1, w)(version)
		u.Waiting, u.NoWorkers = "no worker is registered", true
		return u
	}
	it := open(t, d).Open(IterOptions{})
	if _, status, err := it.NextElement(0); status != NotYet {
		t.Fatalf("%v, %v", status, err)
	}
	e := it.epoch()
	eventually(t, "it is asked again", func() bool {
		state := e.State()
		return asked.Load() > 1 && state.NoWorkers && state.Streams[0].Open
	})
	now := time.Now()
	if err := e.Outage(now, limit); err != nil {
		t.Errorf("at once: %v", err)
	}
	if err := e.Outage(now.Add(limit+1), limit); !reason.Is(err, reason.NoWorkers) {
		t.Errorf("after %v: %v", limit, err)
	}
	// The worker has not denied the stream again, so it has the stream now.
	for _, after := range []time.Duration{1, limit + 2} {
		if err := e.Outage(now.Add(epoch.DenialTime+after), limit); err != nil {
			t.Errorf("%v later: %v", after, err)
		}
	}
	close(hold)
	all, err := read(t, it)
	if err != nil {
		t.Fatal(err)
	}
	wantAll(t, all, 10)
}

func TestUnreachableWorkersAreATemporaryTypedError(t *testing.T) {
	const limit = 150 * time.Millisecond
	stopped, lost := startWorker(t, same(testStream{count: 10})), startWorker(t, same(testStream{count: 10}))
	stopped.stop()
	lost.stop()
	d := startDispatcher(t)
	lease := uint64(1)
	d.updateOf = func(uint64) *pecanv1.EpochUpdate {
		// The dispatcher moves the stream from one to the other and back.
		worker := []*testWorker{stopped, lost}[lease%2].address()
		return &pecanv1.EpochUpdate{TotalStreams: 1, StreamsFinal: true, Streams: []*pecanv1.ConsumerStream{{Lease: lease, WorkerNumber: numberOf(worker)}}}
	}
	it := open(t, d).Open(IterOptions{Timeout: limit})
	began := time.Now()
	var err error
	eventually(t, "the outage is an error", func() bool {
		d.update(func() { lease++ })
		var status Status
		_, status, err = it.NextElement(20 * time.Millisecond)
		return status == Failed
	})
	if !reason.Is(err, reason.Unavailable) || !strings.Contains(err.Error(), "--advertise") || time.Since(began) < limit {
		t.Errorf("after %v: %v", time.Since(began), err)
	}
	if text := err.Error(); !strings.Contains(text, stopped.tcp.Addr().String()) && !strings.Contains(text, lost.tcp.Addr().String()) {
		t.Errorf("no address: %v", err)
	}
	good := startWorker(t, same(testStream{count: 10}))
	d.update(func() {
		lease++
		d.updateOf = func(uint64) *pecanv1.EpochUpdate {
			return &pecanv1.EpochUpdate{TotalStreams: 1, StreamsFinal: true, Streams: []*pecanv1.ConsumerStream{{Lease: lease, WorkerNumber: numberOf(good.address())}}}
		}
	})
	all, err := read(t, it)
	if err != nil {
		t.Fatal(err)
	}
	wantAll(t, all, 10)
}

// A step may need minutes for one element, and workers may be busy with other streams. Both are no outage.
func TestSlowWorkersAreNoOutage(t *testing.T) {
	const limit = 300 * time.Millisecond
	hold := make(chan struct{})
	w := startWorker(t, same(testStream{count: 10, hold: hold, holdAt: 3}))
	d := startDispatcher(t)
	d.updateOf = func(uint64) *pecanv1.EpochUpdate { return &pecanv1.EpochUpdate{Waiting: "all 2 workers are busy"} }
	it := open(t, d).Open(IterOptions{Timeout: limit})
	idle := func() {
		t.Helper()
		for began := time.Now(); time.Since(began) < 3*limit; {
			if _, status, err := it.NextElement(limit / 20); status != NotYet {
				t.Fatalf("%v, %v", status, err)
			}
		}
	}
	idle()
	d.update(func() { d.updateOf = spread(1, w) })
	first, err := readUpTo(t, it, 3)
	if err != nil {
		t.Fatal(err)
	}
	idle()
	if _, computing := it.Waiting(); !computing {
		t.Errorf("waiting: %s", waiting(it))
	}
	w.cut()
	idle()
	close(hold)
	rest, err := read(t, it)
	if err != nil {
		t.Fatal(err)
	}
	wantAll(t, append(first, rest...), 10)
}
