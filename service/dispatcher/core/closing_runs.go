package core

import (
	"fmt"
	"slices"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
)

// fileKey names the files that caches and snapshots of a stream write: the path is in the graph, and each stream has files of its own.
type fileKey struct {
	fingerprint string
	streams     int32
	stream      uint32
}

// closingRun is the run of a stream that was taken from a worker and may still write its files.
type closingRun struct {
	worker string
	key    streamKey
}

func (c *Core) filesOf(job *pecanv1.StoredJob, stream uint32) fileKey {
	return fileKey{c.state.Dataset(job.DatasetId).GetFingerprint(), job.Plan.GetNumStreams(), stream}
}

// stopRun stops a stream on its worker; lease 0 stops whatever it holds. A run that writes files is remembered until the
// worker says that nothing of it is open any more, or is gone: nobody may begin over the same files before, since TensorFlow refuses a second
// writer, and deletes what a second one has begun when it closes the first one half way. This is not durable. A dispatcher that is started
// anew, or a worker that connects again, while a run closes forgets of it.
func (c *Core) stopRun(job *pecanv1.StoredJob, workerID string, key streamKey, lease uint64) {
	command := stopCommand(key, lease)
	if job.Plan.GetWritesFiles() && c.workers[workerID] != nil {
		command.GetStop().Confirm = true
		files := c.filesOf(job, key.stream)
		c.closing[files] = append(c.closing[files], closingRun{workerID, key})
	}
	c.command(workerID, command)
}

// runStopped notes that what was taken back is closed.
func (c *Core) runStopped(workerID string, key streamKey) {
	c.removeClosingRuns(func(run closingRun) bool { return run == closingRun{workerID, key} })
}

func (c *Core) removeClosingRuns(which func(closingRun) bool) {
	for files, runs := range c.closing {
		left := slices.DeleteFunc(runs, which)
		if len(left) == len(runs) {
			continue
		}
		c.dirty = true
		if c.closing[files] = left; len(left) == 0 {
			delete(c.closing, files)
		}
	}
}

// closingRunsOf gives the runs that a stream has to wait for.
func (c *Core) closingRunsOf(job *pecanv1.StoredJob, stream *pecanv1.StoredStream) []closingRun {
	if !job.Plan.GetWritesFiles() {
		return nil
	}
	return c.closing[c.filesOf(job, stream.Stream)]
}

// closingText says whose closing a stream waits for.
func (c *Core) closingText(stream *pecanv1.StoredStream, run closingRun) string {
	return fmt.Sprintf("stream %d: worker %s at %s", stream.Stream, run.worker, c.workers[run.worker].address.GetTcp())
}
