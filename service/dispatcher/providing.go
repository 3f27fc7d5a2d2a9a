package dispatcher

import (
	"context"
	"time"

	"github.com/pecan-ml/pecan/service/dispatcher/core/fleet"
	"github.com/pecan-ml/pecan/service/internal/clock"
	"github.com/pecan-ml/pecan/service/provision"
)

const (
	// providerTimeout bounds one call of the provider.
	providerTimeout = 30 * time.Second
	// movingPeriod is the time between two calls while workers come or go. stablePeriod is the time otherwise.
	movingPeriod = time.Second
	stablePeriod = 5 * time.Second
	// firstRetry is the pause after a failed call. It doubles up to lastRetry.
	firstRetry = time.Second
	lastRetry  = 30 * time.Second
)

// provideWorkers asks the provider for what the core wants, until ctx ends. A call may take long, so it is made outside of the
// core. The first call only looks: the core continues with what an earlier process asked for.
func (d *Dispatcher) provideWorkers(ctx context.Context) {
	retry, failure := time.Duration(0), ""
	for ctx.Err() == nil {
		answer := d.askProvider(ctx, d.requested.Load())
		switch {
		case ctx.Err() != nil:
			return
		case answer.Error == "":
			retry = 0
		default:
			d.metrics.ProviderFailed()
			retry = min(max(2*retry, firstRetry), lastRetry)
		}
		if answer.Error != failure {
			if failure = answer.Error; failure != "" {
				d.deps.Log.Warn("a call of the provider of workers failed; trying again", "provider", d.cfg.Core.Fleet.Provider, "error", failure)
			} else {
				d.deps.Log.Info("the provider of workers answers again", "provider", d.cfg.Core.Fleet.Provider)
			}
		}
		if !d.waitForDisk(ctx) {
			return
		}
		d.decide(answer)
		if retry > 0 {
			clock.Sleep(ctx, retry)
			continue
		}
		period := stablePeriod
		if s := answer.State; s.Requested+s.Pending+len(s.Leaving) > 0 {
			period = movingPeriod
		}
		pause := time.NewTimer(period)
		select {
		case <-ctx.Done():
		case <-d.requestChanged:
		case <-pause.C:
		}
		pause.Stop()
	}
}

// askProvider makes one call. It only looks if nothing was requested yet.
func (d *Dispatcher) askProvider(ctx context.Context, request *fleet.Request) fleet.Answer {
	ctx, cancel := context.WithTimeout(ctx, providerTimeout)
	defer cancel()
	var state provision.State
	var err error
	if request == nil {
		state, err = d.deps.Provider.Observe(ctx)
	} else {
		leaving := make([]provision.Address, 0, len(request.Leaving))
		for _, address := range request.Leaving {
			leaving = append(leaving, provision.Address(address))
		}
		state, err = d.deps.Provider.Reconcile(ctx, request.Desired, leaving)
	}
	answer := fleet.Answer{Asked: request, State: fleet.State{
		Desired: state.Desired, Requested: state.Requested, Pending: state.Pending, Ready: state.Ready, Stuck: state.Stuck, Ordered: state.Ordered, Why: state.Why,
		Leaving: words(state.Leaving), Removable: words(state.Removable),
	}}
	if err != nil {
		answer.Error = err.Error()
	}
	return answer
}

func words(addresses []provision.Address) (list []string) {
	for _, address := range addresses {
		list = append(list, string(address))
	}
	return list
}

// request gives the loop what the core wants.
func (d *Dispatcher) request(wanted fleet.Request) {
	d.requested.Store(&wanted)
	select {
	case d.requestChanged <- struct{}{}:
	default:
	}
}

// RemoteWorkers counts the registered remote workers that may get streams.
func (d *Dispatcher) RemoteWorkers() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.core.RemoteWorkers()
}
