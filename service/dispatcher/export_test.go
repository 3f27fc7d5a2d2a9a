package dispatcher

import (
	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/dispatcher/core"
	"github.com/pecan-ml/pecan/service/dispatcher/core/measure"
	"github.com/pecan-ml/pecan/service/dispatcher/core/placement"
	"github.com/pecan-ml/pecan/service/dispatcher/placing"
)

// PlaceNow is placeNow for tests.
func (d *Dispatcher) PlaceNow(r placing.Request) *pecanv1.Placement {
	return d.placeNow(r, placement.Placed{}).Placement
}

// ChooseCacheNow is chooseCacheNow for tests.
func (d *Dispatcher) ChooseCacheNow(facts measure.Caching) *pecanv1.CacheDecision {
	return d.chooseCacheNow(core.CachingRequest{Facts: facts}, core.CachingDecided{}).Decision
}

// StateHash tells two durable states apart.
func (d *Dispatcher) StateHash() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.core.State().Hash()
}

// Hold keeps the core from deciding and showing anything until release is called.
func (d *Dispatcher) Hold() (release func()) {
	d.mu.Lock()
	return d.mu.Unlock
}

// Statuses returns how many statuses were made, and how many calls wait for the next one.
func (d *Dispatcher) Statuses() (made, waiting int) {
	d.statuses.mu.Lock()
	defer d.statuses.mu.Unlock()
	if d.statuses.next != nil {
		waiting = d.statuses.next.shared
	}
	return d.statuses.made, waiting
}

// Replay is replay for tests.
var Replay = replay

// NextPause is nextPause for tests.
var NextPause = nextPause
