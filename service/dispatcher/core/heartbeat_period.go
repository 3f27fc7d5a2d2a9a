package core

import (
	"maps"
	"slices"
	"time"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/dispatcher/core/placement"
)

const (
	// heartbeatRate is how many heartbeats per second the dispatcher wants from all workers together. Each wakes idle
	// threads at both ends, which costs more than its content.
	heartbeatRate = 400
	// heartbeatsToDeath is how many heartbeats in a row must be missing before a worker counts as dead.
	heartbeatsToDeath = 4
	// periodChange is the smallest ratio of two periods for which all workers get the new one.
	periodChange = 1.25
)

// spaceHeartbeats gives a large fleet a longer period of heartbeats, and a small one the configured period again. Workers count
// as dead after the same time as before.
func (c *Core) spaceHeartbeats() {
	period := time.Duration(len(c.workers)) * time.Second / heartbeatRate
	period = max(c.cfg.Heartbeat, min(period, c.cfg.DeadAfter/heartbeatsToDeath))
	ratio := float64(period) / float64(c.heartbeatPeriod)
	if ratio < periodChange && ratio > 1/periodChange {
		return
	}
	c.slowerPeriod, c.slowerUntil = c.heartbeatPeriod, c.now+c.heartbeatPeriod
	c.heartbeatPeriod = period
	for _, id := range slices.Sorted(maps.Keys(c.workers)) {
		c.command(id, &pecanv1.WorkerCommand{Kind: &pecanv1.WorkerCommand_SetHeartbeat{SetHeartbeat: &pecanv1.SetHeartbeat{PeriodS: period.Seconds()}}})
	}
}

// suspectAfter is how long a worker may be silent before it gets no new streams. A longer period is no reason to suspect it, and the
// last one may still be running.
func (c *Core) suspectAfter() time.Duration {
	period := c.heartbeatPeriod
	if c.now <= c.slowerUntil {
		period = max(period, c.slowerPeriod)
	}
	return min(c.cfg.SuspectAfter+period-c.cfg.Heartbeat, c.cfg.DeadAfter)
}

// recentReports is how far to look back for two heartbeats of a worker.
func (c *Core) recentReports() time.Duration { return max(placement.RecentTime, 3*c.heartbeatPeriod) }
