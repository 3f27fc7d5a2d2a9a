package dispatcher

import (
	"context"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/dispatcher/caching"
	"github.com/pecan-ml/pecan/service/dispatcher/core"
)

// chooseCache decides in the background which step of a job is cached.
func (d *Dispatcher) chooseCache(asked core.CachingRequest) {
	d.inBackground(d.cachingWork(asked))
}

// chooseCacheFor decides before an epoch is opened, and waits until the decision is durable.
func (d *Dispatcher) chooseCacheFor(ctx context.Context, req *pecanv1.OpenEpochRequest) error {
	d.mu.Lock()
	asked := d.core.CacheToDecide(req)
	d.mu.Unlock()
	if asked == nil {
		return nil
	}
	_, err := d.submit(ctx, d.compute(d.cachingWork(*asked)))
	return err
}

func (d *Dispatcher) cachingWork(asked core.CachingRequest) backgroundWork {
	undecided := core.CachingDecided{Number: asked.Number, JobID: asked.JobID}
	return backgroundWork{
		one: &d.cachingMu, compute: func() any { return d.chooseCacheNow(asked, undecided) }, afterPanic: undecided,
		failed: "deciding on a cache failed", about: []any{"job", asked.JobID},
	}
}

// chooseCacheNow completes the answer to a request.
func (d *Dispatcher) chooseCacheNow(asked core.CachingRequest, answer core.CachingDecided) core.CachingDecided {
	prices, note := caching.Prices{}, ""
	if options := asked.Facts.Options.GetPlacement(); d.deps.Prices != nil && options.GetObjective() != "" {
		found, _, err := d.deps.Prices(options.GetTrainerType())
		if err != nil {
			note = "; without prices: " + err.Error()
		} else if prices.Prices = found; d.deps.StoragePrice != nil {
			prices.Storage = d.deps.StoragePrice()
		}
	}
	choose := d.deps.ChooseCache
	if choose == nil {
		choose = caching.Decide
	}
	decided, waitsFor := choose(asked.Facts, prices)
	if decided == nil {
		answer.WaitsFor = waitsFor
		return answer
	}
	decided.Why += note
	answer.Decision = decided
	return answer
}
