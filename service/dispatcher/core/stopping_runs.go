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

// closingRun is a stopped run that may still write its files.
type closingRun struct {
	worker string
	key    pecanv1.StreamKey
}

func (c *Core) filesOf(job *durable.Job, stream uint32) fileKey {
	return fileKey{c.state.Dataset(job.DatasetId).GetFingerprint(), job.Plan.GetNumStreams(), stream}
}

// stopRun stops a stream on its worker; lease 0 stops every run of it. A run that writes files stays in closing
// until its worker reports that all is closed, or is lost. No other run may open the same files before:
// TensorFlow refuses a second writer, and deletes the second one's files when it closes the first. This state is
// volatile. A restart of the dispatcher, or a new connection of the worker, loses it.
func (c *Core) stopRun(job *durable.Job, workerID string, key pecanv1.StreamKey, lease uint64) {
	if !job.Plan.GetWritesFiles() || c.workers[workerID] == nil {
		c.sendStop(workerID, key, lease)
		return
	}
	files := c.filesOf(job, key.Stream)
	c.closing[files] = append(c.closing[files], closingRun{workerID, key})
	c.command(workerID, &pecanv1.WorkerCommand{Kind: &pecanv1.WorkerCommand_Stop{Stop: &pecanv1.StopStream{Id: key.ID(), Lease: lease, Confirm: true}}})
}

// runStopped notes that a stopped run is closed.
func (c *Core) runStopped(workerID string, key pecanv1.StreamKey) {
	c.removeClosingRuns(func(run closingRun) bool { return run == closingRun{workerID, key} })
}

func (c *Core) removeClosingRuns(which func(closingRun) bool) {
	for files, runs := range c.closing {
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
		if c.closing[files] = left; len(left) == 0 {
			delete(c.closing, files)
		}
	}
}

// closingRunsOf returns the runs that a stream must wait for.
func (c *Core) closingRunsOf(job *durable.Job, stream uint32) []closingRun {
	if !job.Plan.GetWritesFiles() {
		return nil
	}
	return c.closing[c.filesOf(job, stream)]
}

// closingText names a run that a stream waits for.
func (c *Core) closingText(stream *pecanv1.StoredStream, run closingRun) string {
	return fmt.Sprintf("stream %d: worker %s at %s", stream.Stream, run.worker, c.workers[run.worker].address.GetTcp())
}
