package core

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/dispatcher/core/durable"
	"github.com/pecan-ml/pecan/service/dispatcher/core/placement"
	"github.com/pecan-ml/pecan/service/dispatcher/core/schedule"
)

// waitingReason says why nothing moves for a client, and whether workers are missing; empty if something moves.
// An empty client asks for the whole epoch. busy gives Core.runningStreams; the caller computes it once for many
// epochs.
func (c *Core) waitingReason(job *durable.Job, epoch *durable.Epoch, clientID string, busy func() int) (words string, noWorkers bool) {
	if job.Error != nil || epoch.Error != nil || epoch.Delivered() || len(epoch.Passes) == 0 || durable.AllPrefetched(epoch) {
		return "", false
	}
	mayRead := func(stream *pecanv1.StoredStream) bool {
		return !stream.Delivered && (clientID == "" || stream.Consumer == clientID || stream.Consumer == "" && stream.Worker == nil)
	}
	if epoch.Held() > 0 && epoch.AnyActive(func(stream *pecanv1.StoredStream) bool { return mayRead(stream) && c.moves(epoch, stream) }) {
		return "", false
	}
	var away, queued, unread, closing []string
	mine, carries := false, ""
	last, _ := job.Plan.LastClosing()
	for _, stream := range waitingStreams(epoch) {
		if !mayRead(stream) {
			continue
		}
		mine = true
		if stream.Worker == nil {
			if before := epoch.After; before != nil && stream.Stream == last && job.Plan.GetCarry() {
				carries = fmt.Sprintf("the last batches begin with rows of epoch %d, which has not ended yet: other trainers of job %q still read it", *before, job.Name)
			}
			queued = append(queued, fmt.Sprint(stream.Stream))
			for _, run := range c.stoppingRunsOf(job, stream.Stream) {
				closing = append(closing, c.stoppingText(stream, run))
			}
			continue
		}
		where := fmt.Sprintf("stream %d: worker %s at %s", stream.Stream, stream.Worker.WorkerId, stream.Worker.Tcp)
		if worker := c.workers[stream.Worker.WorkerId]; worker != nil && !worker.away {
			unread = append(unread, where+": "+c.volatileStream(keyOf(job, epoch, stream)).unreachableReason)
			continue
		}
		away = append(away, where)
	}
	provider := ""
	if !placement.TargetsLocal(job) {
		provider = c.fleet.Waiting()
	}
	switch {
	case len(unread) > 0:
		return fmt.Sprintf("the trainer cannot read from registered workers; check their advertised addresses (%s)", shorten(unread)), false
	case len(away) > 0:
		return fmt.Sprintf("waiting for workers with a broken connection to return or to be replaced (%s)", shorten(away)), false
	case len(c.workers) == 0 && provider != "":
		return provider, !c.fleet.Coming()
	case len(c.workers) == 0:
		return "no worker is registered with the dispatcher; start one (pecan-worker --dispatcher HOST:PORT)" + c.lossReason(epoch), true
	case !mine && epoch.Total() == 0:
		return "no registered worker is connected", true
	case !mine:
		return fmt.Sprintf("other trainers of job %q read all remaining streams; this pass ends with them", job.Name), false
	}
	clients := []string{clientID}
	if clientID == "" {
		clients = readers(epoch)
	}
	connected, usable, excluded, unreachable := 0, 0, 0, 0
	var avoided []string
	for id, worker := range c.workers {
		if !worker.away {
			connected++
		}
		if c.usable(worker) {
			usable++
			switch reach := c.bestReach(id, clients); {
			case !c.placements.Serves(id, job):
				excluded++
			case reach == schedule.Unreachable:
				unreachable++
			case reach == schedule.Unreached:
				avoided = append(avoided, id)
			}
		}
	}
	switch {
	case usable == 0 && provider != "" && c.fleet.Coming():
		return provider, false
	case usable == 0:
		return fmt.Sprintf("none of the %d registered workers answers (%d connected)%s", len(c.workers), connected, c.lossReason(epoch)), true
	case usable == excluded && placement.TargetsLocal(job):
		return fmt.Sprintf(`target_workers="LOCAL" needs a worker on the trainer's host, and none of the %d workers that answer is on the trainer's host and may serve it; give local_workers=1, start one there (pecan-worker --kind local), or give target_workers="ANY"`, usable), true
	case usable == excluded+unreachable && provider != "":
		return provider, !c.fleet.Coming()
	case usable == excluded:
		return fmt.Sprintf("all %d workers that answer are local workers of other trainers; start a worker (pecan-worker --dispatcher HOST:PORT), or give local_workers=1", usable), true
	case usable == excluded+unreachable:
		return fmt.Sprintf("the trainer reaches none of the %d workers that may serve it: they are local workers of another host, at loopback addresses; start another worker (pecan-worker --dispatcher HOST:PORT), or give the trainer on that host the dispatcher's address in the network instead of a loopback address", unreachable), true
	}
	usable -= excluded + unreachable
	avoids := ""
	if len(avoided) > 0 && len(avoided) < usable {
		slices.Sort(avoided)
		usable -= len(avoided)
		avoids = fmt.Sprintf("; the trainer avoids workers that it could not reach (%s)", shorten(avoided))
	}
	if carries != "" && len(queued) == 1 {
		return carries, false
	}
	if len(closing) > 0 {
		return fmt.Sprintf("waiting for workers to close the cache or snapshot files of an earlier pass (%s)", shorten(closing)), false
	}
	if c.schedule.OfJob(job).Bounded {
		return fmt.Sprintf("the job or its tenant %q has as many slots as its quota allows (--tenants of the dispatcher); waiting for one of them: stream %s", job.Options.EffectiveTenant(), shorten(queued)), false
	}
	return fmt.Sprintf("all %d workers are busy (%d streams running); waiting for room: stream %s%s", usable, busy(), shorten(queued), avoids), false
}

// moves reports whether a stream is on a worker that answers and that its reader reaches.
func (c *Core) moves(epoch *durable.Epoch, stream *pecanv1.StoredStream) bool {
	if stream.Worker == nil {
		return false
	}
	worker, volatileStream := c.workers[stream.Worker.WorkerId], c.findVolatile(keyOf(epoch.Job, epoch, stream))
	return worker != nil && !worker.away && (volatileStream == nil || volatileStream.unreachableReports == 0)
}

// waitingStreams returns the active streams of an epoch and the first fresh ones, ascending.
func waitingStreams(epoch *durable.Epoch) []*pecanv1.StoredStream {
	const most = 128
	list := epoch.Active()
	for stream, more := epoch.NextFresh(0); more && len(list) < most+epoch.ActiveStreams(); stream, more = epoch.NextFresh(stream + 1) {
		list = append(list, epoch.Stream(stream))
	}
	slices.SortFunc(list, func(a, b *pecanv1.StoredStream) int { return cmp.Compare(a.Stream, b.Stream) })
	return list
}

// runningStreams counts the running streams.
func (c *Core) runningStreams() int {
	n := 0
	for _, job := range c.state.Jobs() {
		for _, epoch := range job.Epochs {
			n += schedule.RunningStreams(epoch)
		}
	}
	return n
}

// lossReason says why a stream of the epoch lost its worker.
func (c *Core) lossReason(epoch *durable.Epoch) string {
	for _, stream := range epoch.Active() {
		if stream.Worker == nil && !stream.Delivered && stream.Why != "" {
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
