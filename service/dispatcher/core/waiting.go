package core

import (
	"fmt"
	"strings"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/dispatcher/core/durable"
	"github.com/pecan-ml/pecan/service/dispatcher/core/schedule"
)

// waitingReason says why nothing moves for a client, and whether workers are missing; empty if something moves.
// An empty client asks for the whole epoch. busy gives Core.runningStreams; the caller computes it once for many
// epochs.
func (c *Core) waitingReason(job *pecanv1.StoredJob, epoch *pecanv1.StoredEpoch, clientID string, busy func() int) (words string, noWorkers bool) {
	if job.Error != nil || epoch.Error != nil || durable.Delivered(epoch) || len(epoch.Passes) == 0 || durable.AllPrefetched(epoch) {
		return "", false
	}
	var away, queued, unread, closing []string
	mine := false
	for _, stream := range epoch.Streams {
		if stream.Delivered || clientID != "" && stream.Consumer != clientID && (stream.Consumer != "" || stream.Worker != nil) {
			continue
		}
		mine = true
		if stream.Worker == nil {
			queued = append(queued, fmt.Sprint(stream.Stream))
			for _, run := range c.closingRunsOf(job, stream) {
				closing = append(closing, c.closingText(stream, run))
			}
			continue
		}
		if worker := c.workers[stream.Worker.WorkerId]; worker != nil && !worker.away {
			volatileStream := c.streams[streamKey{job.JobId, epoch.Epoch, stream.Stream}]
			if volatileStream == nil || volatileStream.unreachableReports == 0 {
				return "", false
			}
			unread = append(unread, fmt.Sprintf("stream %d: worker %s at %s: %s", stream.Stream, stream.Worker.WorkerId, stream.Worker.Tcp, volatileStream.unreachableReason))
			continue
		}
		away = append(away, fmt.Sprintf("stream %d: worker %s at %s", stream.Stream, stream.Worker.WorkerId, stream.Worker.Tcp))
	}
	switch {
	case len(unread) > 0:
		return fmt.Sprintf("the trainer cannot read from registered workers; check their advertised addresses (%s)", shorten(unread)), false
	case len(away) > 0:
		return fmt.Sprintf("waiting for workers with a broken connection to return or to be replaced (%s)", shorten(away)), false
	case len(c.workers) == 0:
		return "no worker is registered with the dispatcher; start one (pecan-worker --dispatcher HOST:PORT)" + c.lossReason(epoch), true
	case !mine && len(epoch.Streams) == 0:
		return "no registered worker is connected", true
	case !mine:
		return fmt.Sprintf("other trainers of job %q read all remaining streams; this pass ends with them", job.Name), false
	}
	connected, usable := 0, 0
	for _, worker := range c.workers {
		if !worker.away {
			connected++
		}
		if c.usable(worker) {
			usable++
		}
	}
	if usable == 0 {
		return fmt.Sprintf("none of the %d registered workers answers (%d connected)%s", len(c.workers), connected, c.lossReason(epoch)), true
	}
	if len(closing) > 0 {
		return fmt.Sprintf("waiting for workers to close the cache or snapshot files of an earlier pass (%s)", shorten(closing)), false
	}
	return fmt.Sprintf("all %d workers are busy (%d streams running); waiting for room: stream %s", usable, busy(), shorten(queued)), false
}

// runningStreams counts the running streams.
func (c *Core) runningStreams() int {
	n := 0
	c.eachStream(func(job *pecanv1.StoredJob, epoch *pecanv1.StoredEpoch, stream *pecanv1.StoredStream) {
		if schedule.Running(job, epoch, stream) {
			n++
		}
	})
	return n
}

// lossReason says why a stream of the epoch lost its worker.
func (c *Core) lossReason(epoch *pecanv1.StoredEpoch) string {
	for _, stream := range epoch.Streams {
		if !stream.Delivered && stream.Worker == nil && stream.Why != "" {
			return fmt.Sprintf("; stream %d: %s", stream.Stream, stream.Why)
		}
	}
	return ""
}

// shorten shortens long lists.
func shorten(words []string) string {
	const most = 4
	if len(words) <= most {
		return strings.Join(words, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(words[:most], ", "), len(words)-most)
}
