package sim

import (
	"context"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pecan-ml/pecan/native/buffer"
	"github.com/pecan-ml/pecan/native/client"
	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/tests/sim/simnet"
)

// wanted has the requests of a trainer.
type wanted struct {
	dataset *dataset
	mode    pecanv1.Mode
	// name makes the job shared.
	name string
	// pace is the time of a training step.
	pace time.Duration
	// ahead is how much the trainer requests in advance.
	ahead int64
	// checksum asks for checksums of payloads.
	checksum bool
	// stopsAt, if stopsFor is not 0: after this many elements of its first epoch the trainer takes nothing for stopsFor.
	stopsAt  int
	stopsFor time.Duration
	// weight and tenant are the job's.
	weight float64
	tenant string
	// again, if not 0: the trainer closes an epoch after this many elements, and resumes it at its position.
	again int
	// placement is the objective of the job; nil for none.
	placement *pecanv1.PlacementOptions
}

func (w wanted) jobOptions() *pecanv1.JobOptions {
	cache := pecanv1.Cache_CACHE_UNSPECIFIED
	if w.dataset.chosen {
		cache = pecanv1.Cache_CACHE_AUTO
	}
	return &pecanv1.JobOptions{
		Cache: cache, Mode: w.mode, Seed: 7, SeedSet: true, PayloadChecksum: w.checksum, Streams: int32(w.dataset.asked), Weight: w.weight, Tenant: w.tenant, Placement: w.placement,
	}
}

// trainer is a process with one job.
type trainer struct {
	c       *cluster
	n       int
	host    *simnet.Host
	wanted  wanted
	session *client.Session
	pool    *buffer.Pool
	job     *client.Job
	// taken counts elements over all epochs, for tests that wait for progress.
	taken atomic.Int64
	// stopped is set if it has stopped for stopsFor.
	stopped bool
	// dead is set if the trainer was killed and reads no more.
	dead atomic.Bool
	// ending is closed when the trainer ends. locals has what starts and stops its local workers.
	ending chan struct{}
	locals sync.WaitGroup
}

// patience is how long, on the fake clock, a trainer may wait for an element after all faults ended.
const patience = 5 * time.Minute

func trainerIP(n int) string { return "10.0.2." + string(rune('1'+n)) }

func trainerID(n int) string { return fmt.Sprint("trainer ", n) }

// join starts a trainer, registers its dataset and creates its job.
func (c *cluster) join(n int, w wanted) *trainer {
	c.t.Helper()
	host := c.net.Host(trainerIP(n))
	host.Start()
	pool, err := buffer.NewPool(buffer.Config{})
	if err != nil {
		c.t.Fatal(err)
	}
	tr := &trainer{c: c, n: n, host: host, wanted: w, pool: pool, ending: make(chan struct{})}
	hostID, id := "none", trainerID(0)
	if n > 0 && c.options.apart {
		hostID, id = "other", trainerID(n)
	}
	target := dispatcherAddr
	if c.proxy != nil {
		target = proxyAddr
	}
	ctx := context.Background()
	tr.session, err = client.Connect(ctx, client.Config{
		Target: target, Timeout: patience, Version: "sim", Host: "trainer", HostID: hostID, TrainerID: id, Pool: pool, Logger: c.log.With("process", "trainer", "host", trainerIP(n)),
		Dial: func(ctx context.Context, network, address string) (net.Conn, error) {
			nc, err := host.Dial(ctx, network, address)
			if err != nil {
				return nil, err
			}
			return c.ledger.tap(n, nc), nil
		},
	})
	if err != nil {
		c.t.Fatalf("connect: %v", err)
	}
	c.trainersMu.Lock()
	c.trainers[tr] = struct{}{}
	c.trainersMu.Unlock()
	dataset, _, err := tr.session.RegisterDataset(ctx, w.dataset.graph(), w.dataset.spec, "")
	if err != nil {
		c.t.Fatalf("register: %v", err)
	}
	tr.job, err = tr.session.CreateJob(ctx, client.JobSpec{DatasetID: dataset, Name: w.name, LocalWorkers: n == 0 && c.options.locals > 0, Options: w.jobOptions()})
	if err != nil {
		c.t.Fatalf("create the job: %v", err)
	}
	c.trainersMu.Lock()
	c.jobs[tr.job.ID()], c.loses[tr.job.ID()] = w.dataset, w.mode == pecanv1.Mode_MODE_AT_MOST_ONCE
	c.trainersMu.Unlock()
	if n == 0 && c.options.locals > 0 {
		tr.locals.Go(tr.keepLocalWorkers)
	}
	return tr
}

// reading reads in the background. wait reports its error to the test.
func (tr *trainer) reading(epochs int) (wait func()) {
	done := make(chan error, 1)
	go func() { done <- tr.read(epochs) }()
	return func() {
		tr.c.t.Helper()
		if err := <-done; err != nil {
			tr.c.t.Error(err)
		}
	}
}

// read reads this many epochs to their ends; the error describes the first failure.
func (tr *trainer) read(epochs int) error {
	for range epochs {
		if err := tr.epoch(); err != nil {
			return err
		}
	}
	return nil
}

func (tr *trainer) epoch() error {
	it := tr.job.Open(client.IterOptions{MaxOutstandingBytes: tr.wanted.ahead, Timeout: patience})
	defer func() { it.Close() }()
	count, waiting := uint64(0), time.Now()
	before := uint64(0)
	for again := tr.wanted.again; ; {
		if again > 0 && int(count) == again {
			place := it.Where()
			it.Close()
			it = tr.job.Open(client.IterOptions{MaxOutstandingBytes: tr.wanted.ahead, Timeout: patience, Resume: place})
			before, again = count, 0
		}
		if tr.wanted.stopsFor > 0 && !tr.stopped && int(count) == tr.wanted.stopsAt {
			tr.stopped = true
			time.Sleep(tr.wanted.stopsFor)
			waiting = time.Now()
		}
		rows, status, err := it.NextElement(200 * time.Millisecond)
		if tr.dead.Load() {
			if rows != nil {
				rows.Release()
			}
			return nil
		}
		switch status {
		case client.Ready:
			tr.c.ledger.took(tr, rows)
			rows.Release()
			tr.taken.Add(1)
			count++
			time.Sleep(tr.wanted.pace)
			waiting = time.Now()
		case client.NotYet:
			if time.Since(waiting) > 2*patience {
				why, _ := it.Waiting()
				return fmt.Errorf("trainer %d has waited for %v after %d elements: %s", tr.n, time.Since(waiting), count, why)
			}
		case client.Failed, client.Broken:
			return fmt.Errorf("trainer %d after %d elements: %w", tr.n, count, err)
		case client.End:
			stats := it.Stats()
			if stats.Elements != count-before || stats.Failed != 0 {
				return fmt.Errorf("trainer %d took %d elements; its counters say %d, and %d failed", tr.n, count-before, stats.Elements, stats.Failed)
			}
			tr.c.ledger.ended(stats)
			return nil
		}
	}
}

// some reads this many elements of an epoch, and more until mayGo, and leaves. It returns false if the epoch or the
// trainer ended first.
func (tr *trainer) some(elements int, mayGo func() bool) (left bool, err error) {
	it := tr.job.Open(client.IterOptions{MaxOutstandingBytes: tr.wanted.ahead, Timeout: patience})
	defer it.Close()
	for n := 0; n < elements || !mayGo(); {
		rows, status, err := it.NextElement(time.Second)
		switch {
		case tr.dead.Load():
			if rows != nil {
				rows.Release()
			}
			return false, nil
		case status == client.Ready:
			tr.c.ledger.took(tr, rows)
			rows.Release()
			tr.taken.Add(1)
			n++
			time.Sleep(tr.wanted.pace)
		case status == client.End:
			return false, nil
		case status == client.Failed || status == client.Broken:
			return false, fmt.Errorf("trainer %d after %d elements of a pass that it leaves early: %w", tr.n, n, err)
		}
	}
	return true, nil
}

// kill ends the trainer silently.
func (tr *trainer) kill() {
	tr.dead.Store(true)
	tr.host.Kill()
	tr.stop()
	tr.endLocalWorkers()
}

// stop ends the trainer in good order and checks that all memory was freed.
func (tr *trainer) stop() {
	tr.c.trainersMu.Lock()
	delete(tr.c.trainers, tr)
	tr.c.trainersMu.Unlock()
	close(tr.ending)
	tr.locals.Wait()
	if err := tr.session.Close(); err != nil {
		tr.c.t.Errorf("close session: %v", err)
	}
	if stats := tr.pool.Stats(); stats.Buffers != 0 && !tr.c.t.Failed() {
		tr.c.t.Errorf("trainer %d has leaked %d buffers", tr.n, stats.Buffers)
	}
	tr.pool.Close()
}

// after waits until the trainer has taken this many elements in all.
func (tr *trainer) after(elements int) {
	tr.c.t.Helper()
	tr.c.eventually(fmt.Sprint(elements, " elements taken"), 10*time.Minute, func() bool { return int(tr.taken.Load()) >= elements || tr.dead.Load() })
}
