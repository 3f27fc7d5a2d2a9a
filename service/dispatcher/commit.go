package dispatcher

import (
	"context"
	"errors"
	"time"

	"github.com/pecan-ml/pecan/proto/reason"
	"github.com/pecan-ml/pecan/service/dispatcher/core"
	"github.com/pecan-ml/pecan/service/dispatcher/core/fleet"
	"github.com/pecan-ml/pecan/service/dispatcher/core/placement"
	"github.com/pecan-ml/pecan/service/dispatcher/core/rollout"
	"github.com/pecan-ml/pecan/service/store"
)

// run writes decisions and lets time pass, until ctx ends or the store fails.
func (d *Dispatcher) run(ctx context.Context) error {
	ticks, stop := d.deps.Clock.NewTicker(d.cfg.TickPeriod)
	defer stop()
	for {
		select {
		case <-d.wake:
		case <-ticks:
			if why, _ := d.diskGate.state(); why == nil {
				d.decide(core.Tick{})
			}
		case <-d.deps.Store.Failed():
			d.stop(reason.New(reason.StoreCorrupt, "the store failed"))
		case <-ctx.Done():
			d.stop(nil)
		case <-d.stopping:
		}
		d.commit()
		select {
		case <-d.stopping:
			return d.failure
		default:
		}
	}
}

// commit makes all pending decisions durable and then releases them. Only one goroutine calls it.
func (d *Dispatcher) commit() {
	d.mu.Lock()
	entries := d.pending
	d.pending = nil
	d.mu.Unlock()
	for len(entries) > 0 {
		group, records := 0, [][]byte(nil)
		for group < len(entries) {
			records = append(records, entries[group].records...)
			group++
			if entries[group-1].snapshot != nil {
				break
			}
		}
		begun := time.Now()
		err := d.deps.Store.Append(records)
		took := time.Since(begun)
		if errors.Is(err, store.ErrFull) {
			d.holdBack(entries, err)
			return
		}
		snapshot := entries[group-1].snapshot
		if err == nil && snapshot != nil {
			if err = d.deps.Store.Compact(snapshot); errors.Is(err, store.ErrFull) {
				// The records are on disk. The snapshot comes with the next ones.
				snapshot, err = nil, nil
				d.mu.Lock()
				d.recordsSinceSnapshot = d.cfg.CompactEvery
				d.mu.Unlock()
			}
		}
		if err != nil {
			// The state of the disk is unknown. Nothing of this group, or after it, is released.
			d.stop(err)
			return
		}
		d.diskHasRoom()
		d.metrics.Committed(len(records), snapshot != nil, took)
		for _, e := range entries[:group] {
			d.metrics.Decided(e.counts)
			for _, effect := range e.effects {
				d.perform(effect)
			}
			close(e.done)
		}
		entries = entries[group:]
	}
}

// perform performs one effect of a durable decision.
func (d *Dispatcher) perform(effect core.Effect) {
	switch e := effect.(type) {
	case core.Command:
		if s := connected(d, d.sessions, e.Session); s != nil {
			s.push(e.Message)
		}
	case core.EndSession:
		if s := connected(d, d.sessions, e.Session); s != nil {
			s.end(e.Err)
		}
	case core.Update:
		if w := connected(d, d.watches, e.Watch); w != nil {
			w.push(e.Message, e.Open)
		}
	case core.EndWatch:
		if w := connected(d, d.watches, e.Watch); w != nil {
			w.end(e.Err)
		}
	case rollout.PlanRequest:
		d.planOrder(e)
	case core.CachingRequest:
		d.chooseCache(e)
	case placement.Request:
		d.place(e)
	case fleet.Request:
		d.request(e)
	case core.WorkerLeft:
		d.metrics.Left(e.AtIndex, e.HadAtIndex, e.All)
		args := []any{"worker", e.Worker, "tcp", e.Tcp, "asked", e.Asked, "took", e.All.Round(time.Millisecond)}
		if e.HadAtIndex {
			args = append(args, "streams_at_index_took", e.AtIndex.Round(time.Millisecond))
		}
		d.deps.Log.Info("a worker left", args...)
	case core.SaveLearned:
		d.keep(e.Fingerprint)
	case core.RemoveGraph:
		d.removeGraph(e.Fingerprint)
	case core.Event:
		if e.Warn {
			d.deps.Log.Warn(e.Text, e.Args...)
		} else {
			d.deps.Log.Info(e.Text, e.Args...)
		}
	}
}

// stop ends the service; err is nil for a normal end.
func (d *Dispatcher) stop(err error) {
	d.stopOnce.Do(func() {
		d.failure = err
		close(d.stopping)
	})
}

func (d *Dispatcher) stopError() error {
	if d.failure != nil {
		return reason.New(reason.Unavailable, "the dispatcher stopped: %w", d.failure)
	}
	return reason.New(reason.Unavailable, "the dispatcher is stopping; try again when it is back")
}
