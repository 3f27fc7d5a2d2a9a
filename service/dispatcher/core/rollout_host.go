package core

import (
	"time"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/dispatcher/core/jobmetrics"
	"github.com/pecan-ml/pecan/service/dispatcher/core/rollout"
)

// rolloutHost implements rollout.Host.
type rolloutHost struct{ c *Core }

// Now implements rollout.Host.
func (h rolloutHost) Now() time.Duration { return h.c.now }

// Emit implements rollout.Host.
func (h rolloutHost) Emit(record *pecanv1.Record) { h.c.emit(record) }

// Metrics implements rollout.Host.
func (h rolloutHost) Metrics(jobID string) *jobmetrics.Totals { return h.c.profiles[jobID].Totals() }

// Plan implements rollout.Host.
func (h rolloutHost) Plan(asked rollout.PlanRequest) { h.c.effect(asked) }

// Worker implements rollout.Host. A worker tries one order at a time.
func (h rolloutHost) Worker(workerID string) (session uint64, free bool) {
	worker := h.c.workers[workerID]
	if worker == nil {
		return 0, false
	}
	return uint64(worker.session), worker.session != 0 && h.c.usable(worker) && !worker.trying
}

// Try implements rollout.Host.
func (h rolloutHost) Try(workerID string, command *pecanv1.TryOrder) {
	h.c.workers[workerID].trying = true
	h.c.command(workerID, &pecanv1.WorkerCommand{Kind: &pecanv1.WorkerCommand_TryOrder{TryOrder: command}})
}

// Log implements rollout.Host.
func (h rolloutHost) Log(warn bool, text string, args ...any) {
	h.c.effect(Event{Text: text, Args: args, Warn: warn})
}

// Explain returns the order in which the steps of a job run, its workers, and why. name is the job's id or name.
func (c *Core) Explain(name string) (*rollout.Explained, error) {
	explained, err := c.orders.Explain(name)
	if err != nil {
		return nil, err
	}
	job := c.state.Job(explained.Response.JobId)
	c.placements.Explain(job, explained.Response)
	c.explainCache(job, explained.Response)
	return explained, nil
}

// DecidedOrder returns the decided order of a job; nil if there is none that can be checked.
func (c *Core) DecidedOrder(jobID string) *rollout.OrderToFind { return c.orders.Decided(jobID) }

// OrderToFind asks for the order of a position; nil if the core knows it.
func (c *Core) OrderToFind(req *pecanv1.OpenEpochRequest) *rollout.OrderToFind {
	return c.orders.OrderToFind(req)
}
