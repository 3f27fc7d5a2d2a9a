package core

import (
	"fmt"
	"slices"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/dispatcher/core/durable"
)

// fileKey names the files that caches and snapshots of a stream write. The graph has the path, and each stream
// has its own files.
type fileKey struct {
	fingerprint string
	streams     int32
	stream      uint32
}

// stoppingRun is a stopped run that may still write its files.
type stoppingRun struct {
	worker string
	key    pecanv1.StreamKey
}

func (c *Core) filesOf(job *durable.Job, stream uint32) fileKey {
	return fileKey{c.state.Dataset(job.DatasetId).GetFingerprint(), job.Plan.GetNumStreams(), stream}
}

// stopRun stops a stream on its worker; lease 0 stops every run of it. A run that writes files stays in stopping
// until its worker reports that all is closed, or is lost. No other run may open the same files before:
// TensorFlow refuses a second writer, and deletes the second one's files when it closes the first. This state is
// volatile. A restart of the dispatcher, or a new connection of the worker, loses it.
func (c *Core) stopRun(job *durable.Job, workerID string, key pecanv1.StreamKey, lease uint64) {
	if !job.Plan.GetWritesFiles() || c.workers[workerID] == nil {
		c.sendStop(workerID, key, lease)
		return
	}
	files := c.filesOf(job, key.Stream)
	c.stopping[files] = append(c.stopping[files], stoppingRun{workerID, key})
	c.command(workerID, &pecanv1.WorkerCommand{Kind: &pecanv1.WorkerCommand_Stop{Stop: &pecanv1.StopStream{Id: key.ID(), Lease: lease, Confirm: true}}})
}

// runStopped notes that a stopped run is closed.
func (c *Core) runStopped(workerID string, key pecanv1.StreamKey) {
	c.removeStoppingRuns(func(run stoppingRun) bool { return run == stoppingRun{workerID, key} })
}

func (c *Core) removeStoppingRuns(which func(stoppingRun) bool) {
	for files, runs := range c.stopping {
		left := slices.DeleteFunc(runs, which)
		if len(left) == len(runs) {
			continue
		}
		for _, job := range c.state.Jobs() {
			for _, epoch := range job.Epochs {
				if job.Plan.GetWritesFiles() {
					c.touch(epoch)
				}
			}
		}
		if c.stopping[files] = left; len(left) == 0 {
			delete(c.stopping, files)
		}
	}
}

// stoppingRunsOf returns the runs that a stream must wait for.
func (c *Core) stoppingRunsOf(job *durable.Job, stream uint32) []stoppingRun {
	if !job.Plan.GetWritesFiles() {
		return nil
	}
	return c.stopping[c.filesOf(job, stream)]
}

// stoppingText names a run that a stream waits for.
func (c *Core) stoppingText(stream *pecanv1.StoredStream, run stoppingRun) string {
	return fmt.Sprintf("stream %d: worker %s at %s", stream.Stream, run.worker, c.workers[run.worker].address.GetTcp())
}
