package main

import (
	"sync"
	"time"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
)

type streamKey = pecanv1.StreamKey

// lease records the run of a stream by some worker.
type lease struct {
	number uint64
	worker int
	// The worker died: since when the stream waits for another one, and how long all slots had been full until then.
	lostAt     time.Time
	fullAtLoss time.Duration
}

// fleet has what all workers and trainers share: the figures.
type fleet struct {
	options   options
	began     time.Time
	cpuBefore float64
	over      chan struct{}
	total     time.Duration
	// deaths is closed when the workers that disappear do so.
	deaths chan struct{}

	toWorkers, toTrainers sizes

	mu sync.Mutex
	// Every stream that has run, by its newest lease.
	leased map[streamKey]*lease
	// When each job's first stream ran.
	first map[string]time.Time
	// Streams that run now, and the time when as many ran as there are slots.
	running   int
	busy      time.Duration
	openS     float64
	firstS    float64
	drainedAt time.Duration
	workDone  time.Duration
	killed    int
	doomed    bool
	// lost counts the streams that ran on workers when these disappeared. movedS is the longest time until one of them ran
	// again. freeS is the longest part of that time in which a slot was free.
	lost          int
	movedS, freeS float64
	// How long the slots of all living workers were full, up to changedAt.
	full      time.Duration
	changedAt time.Time
}

// changes notes that streams start or stop now. Called with mu, before the change.
func (f *fleet) changes(now time.Time) {
	if f.running > 0 && f.running >= (f.options.workers-f.killed)*f.options.slots {
		f.full += now.Sub(f.changedAt)
	}
	f.changedAt = now
}

// started notes that a worker runs a stream.
func (f *fleet) started(key streamKey, number uint64, worker int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := time.Now()
	f.changes(now)
	if was := f.leased[key]; was != nil && !was.lostAt.IsZero() {
		moved := now.Sub(was.lostAt)
		f.movedS = max(f.movedS, moved.Seconds())
		f.freeS = max(f.freeS, (moved - (f.full - was.fullAtLoss)).Seconds())
	}
	f.leased[key] = &lease{number: number, worker: worker}
	if _, ok := f.first[key.Job]; !ok {
		f.first[key.Job] = now
	}
	f.running++
	if f.busy == 0 && (f.running >= f.options.workers*f.options.slots || len(f.leased) >= f.options.jobs*f.options.streams) {
		f.busy = now.Sub(f.began)
	}
	if f.drainedAt == 0 && len(f.leased) >= f.options.jobs*f.options.streams {
		// From here on slots may be free, because no stream is left.
		f.drainedAt = now.Sub(f.began)
	}
	if f.options.kill > 0 && !f.doomed && len(f.leased) > f.options.jobs*f.options.streams/3 {
		// Workers start their streams at about the same time, and in half of their time each worker runs some.
		f.doomed = true
		time.AfterFunc(f.options.work/2, func() { close(f.deaths) })
	}
}

// stopped notes that a worker no longer runs a stream. It has worked on it since `since`.
func (f *fleet) stopped(since time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.changes(time.Now())
	f.running--
	if f.drainedAt == 0 {
		f.workDone += time.Since(since)
	}
}

// died notes the streams that a dead worker ran.
func (f *fleet) died(keys []streamKey) {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := time.Now()
	f.changes(now)
	f.killed++
	f.running -= len(keys)
	f.lost += len(keys)
	for _, key := range keys {
		f.leased[key].lostAt, f.leased[key].fullAtLoss = now, f.full
	}
}

func (f *fleet) report() *report {
	f.mu.Lock()
	defer f.mu.Unlock()
	slots := float64(f.options.workers * f.options.slots)
	// Streams that still ran when the last one started have worked up to then, for half of their time on average.
	worked := f.workDone.Seconds() + slots*f.options.work.Seconds()/2
	return &report{
		OpenS: f.openS, BusyS: f.busy.Seconds(), FirstStreamS: f.firstS, TotalS: f.total.Seconds(),
		Utilisation: min(1, worked/(slots*max(f.drainedAt, time.Millisecond).Seconds())),
		Streams:     len(f.leased), Lost: f.lost, MovedS: f.movedS, MovedFreeS: f.freeS,
		LargestToWorker: int(f.toWorkers.received.Load()), LargestFromWorker: int(f.toWorkers.sent.Load()),
		LargestToTrainer: int(f.toTrainers.received.Load()), LargestFromTrainer: int(f.toTrainers.sent.Load()),
		FleetCPUS: cpuSeconds() - f.cpuBefore,
	}
}
