package core

import (
	"cmp"
	"slices"

	"google.golang.org/protobuf/proto"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
)

// heldPerSlot bounds how many streams a worker keeps that it has made but that are not read to their end.
const heldPerSlot = 4

// needed tells whether a worker has to hold a stream.
func needed(job *pecanv1.StoredJob, epoch *pecanv1.StoredEpoch, stream *pecanv1.StoredStream) bool {
	if job.Error != nil || epoch.Error != nil || len(epoch.Passes) == 0 {
		return false
	}
	if !stream.Delivered {
		return true
	}
	if !hasClosing(job.Plan) || isClosing(job, stream) || epoch.Streams[len(epoch.Streams)-1].Delivered {
		return false
	}
	// What a delivered stream kept back is wanted until the closing stream is delivered.
	return !stream.Produced || stream.RemainderRows > 0
}

// waiting tells whether a stream needs a worker and has none.
func waiting(job *pecanv1.StoredJob, epoch *pecanv1.StoredEpoch, stream *pecanv1.StoredStream) bool {
	return stream.Worker == nil && needed(job, epoch, stream)
}

// remaindersReady tells whether every stream that the closing stream joins has been made.
func remaindersReady(job *pecanv1.StoredJob, epoch *pecanv1.StoredEpoch) bool {
	for _, stream := range epoch.Streams {
		if !isClosing(job, stream) && !stream.Produced {
			return false
		}
	}
	return true
}

// running tells whether a stream costs its worker a slot. A closing stream that waits for others does not: it may
// wait for a stream that has no slot yet.
func running(job *pecanv1.StoredJob, epoch *pecanv1.StoredEpoch, stream *pecanv1.StoredStream) bool {
	return stream.Worker != nil && !stream.Produced && (!isClosing(job, stream) || remaindersReady(job, epoch))
}

// allAtOnce tells whether every stream of an epoch has to be open at the same time.
func allAtOnce(job *pecanv1.StoredJob) bool {
	mode := job.Options.GetMode()
	return job.Plan.GetAllOpen() || mode == pecanv1.Mode_MODE_DETERMINISTIC || mode == pecanv1.Mode_MODE_OFF
}

// static tells whether a job's shards are tied to the configured list of workers, when there is one.
func static(job *pecanv1.StoredJob) bool {
	switch job.Options.GetSharding() {
	case pecanv1.Sharding_SHARDING_FILE, pecanv1.Sharding_SHARDING_DATA, pecanv1.Sharding_SHARDING_FILE_OR_DATA, pecanv1.Sharding_SHARDING_HINT:
		return true
	}
	return false
}

// dropUnneededLeases stops what nobody waits for.
func (c *Core) dropUnneededLeases() {
	c.eachStream(func(job *pecanv1.StoredJob, epoch *pecanv1.StoredEpoch, stream *pecanv1.StoredStream) {
		if stream.Worker == nil || needed(job, epoch, stream) {
			return
		}
		key := streamKey{job.JobId, epoch.Epoch, stream.Stream}
		c.command(stream.Worker.WorkerId, stopCommand(key, stream.Lease))
		c.loseLease(key, stream, pecanv1.LeaseLost_MOVED, "not needed any more")
	})
}

// addOffStreams gives each worker a pass of its own in MODE_OFF, as long as no pass has come to its end.
func (c *Core) addOffStreams() {
	connected := 0
	for _, worker := range c.workers {
		if !worker.away {
			connected++
		}
	}
	for _, job := range c.state.ordered {
		if job.Options.GetMode() != pecanv1.Mode_MODE_OFF || job.Error != nil {
			continue
		}
		for _, epoch := range job.Epochs {
			if epoch.Error != nil || len(epoch.Passes) == 0 || streamsFinal(job, epoch) {
				continue
			}
			for len(epoch.Streams) < connected {
				key := streamKey{job.JobId, epoch.Epoch, uint32(len(epoch.Streams))}
				c.emit(&pecanv1.Record{Kind: &pecanv1.Record_StreamAdded{StreamAdded: &pecanv1.StreamAdded{Id: key.id()}}})
			}
		}
	}
}

// streamsFinal tells whether an epoch gets no more streams.
func streamsFinal(job *pecanv1.StoredJob, epoch *pecanv1.StoredEpoch) bool {
	if job.Options.GetMode() != pecanv1.Mode_MODE_OFF {
		return true
	}
	return slices.ContainsFunc(epoch.Streams, func(s *pecanv1.StoredStream) bool { return s.Produced || s.Delivered })
}

// load of a worker. Streams of epochs opened ahead of need do not count: each has made one element at most and waits, perhaps
// for ever, and must not keep others from the slot.
type load struct {
	running, held int
}

// want is an epoch with streams that wait for a worker.
type want struct {
	job     *pecanv1.StoredJob
	epoch   *pecanv1.StoredEpoch
	waiting []*pecanv1.StoredStream
	// running streams of the epoch, and those held and not read to their end.
	running, held int
	ahead         bool
	// skipped: a stream found no worker, so the closing stream's turn has not come.
	skipped bool
}

func (c *Core) survey() (map[string]*load, []*want) {
	loads := map[string]*load{}
	for id := range c.workers {
		loads[id] = &load{}
	}
	var wants []*want
	for _, job := range c.state.ordered {
		for _, epoch := range job.Epochs {
			w := &want{job: job, epoch: epoch, ahead: allAhead(epoch)}
			for _, stream := range epoch.Streams {
				if waiting(job, epoch, stream) {
					w.waiting = append(w.waiting, stream)
				}
				if stream.Worker == nil {
					continue
				}
				l := loads[stream.Worker.WorkerId]
				if l == nil {
					l = &load{}
				}
				if running(job, epoch, stream) {
					w.running++
				}
				if !stream.Delivered {
					w.held++
				}
				w.charge(l, stream)
			}
			if len(w.waiting) > 0 {
				wants = append(wants, w)
			}
		}
	}
	return loads, wants
}

// charge adds a leased stream of the epoch to the load of its worker.
func (w *want) charge(l *load, stream *pecanv1.StoredStream) {
	if w.ahead {
		return
	}
	if running(w.job, w.epoch, stream) {
		l.running++
	}
	if !stream.Delivered {
		l.held++
	}
}

// assignLeases gives waiting streams to workers. First what must run regardless of room: all streams of epochs that need all open,
// and one stream of every epoch that has none (or a trainer that holds all slots with an iterator it has paused would
// block the iterator it is waiting for). Then room is shared: the epoch with the fewest running streams is next, and its
// streams go in order. Epochs opened ahead come last and get one stream per worker at most, also where all must be open: the
// rest is leased when a client adopts the epoch, which may never be.
func (c *Core) assignLeases() {
	loads, wants := c.survey()
	for _, w := range wants {
		switch {
		case w.ahead:
		case allAtOnce(w.job):
			for len(w.waiting) > 0 && c.leaseNext(loads, w, false) {
			}
		case w.held == 0:
			c.leaseNext(loads, w, false)
		}
	}
	for {
		wants = slices.DeleteFunc(wants, func(w *want) bool { return len(w.waiting) == 0 })
		if len(wants) == 0 {
			return
		}
		next := slices.MinFunc(wants, func(a, b *want) int {
			if a.ahead != b.ahead {
				if a.ahead {
					return 1
				}
				return -1
			}
			return cmp.Compare(a.running, b.running)
		})
		if c.leaseNext(loads, next, true) {
			continue
		}
		if next.skipped = true; static(next.job) {
			// The next stream may belong to another place.
			next.waiting = next.waiting[1:]
		} else {
			next.waiting = nil
		}
	}
}

// leaseNext leases the first waiting stream of an epoch, if a worker can be found.
func (c *Core) leaseNext(loads map[string]*load, w *want, needRoom bool) bool {
	stream := w.waiting[0]
	closing := isClosing(w.job, stream)
	if closing && w.skipped {
		return false
	}
	id := c.pick(loads, w, stream, needRoom && !closing)
	if id == "" || w.ahead && streamsOn(w.epoch, id) > 0 {
		return false
	}
	w.waiting = w.waiting[1:]
	key := streamKey{w.job.JobId, w.epoch.Epoch, stream.Stream}
	c.emit(&pecanv1.Record{Kind: &pecanv1.Record_LeaseGranted{LeaseGranted: &pecanv1.LeaseGranted{
		Id: key.id(), Lease: c.state.lastLease + 1, Worker: c.workers[id].address,
	}}})
	c.soft(key).newLease(stream.Lease, c.now)
	if running(w.job, w.epoch, stream) {
		w.running++
	}
	w.held++
	w.charge(loads[id], stream)
	c.command(id, c.startCommand(w.job, w.epoch, stream))
	c.event("lease granted", "job", key.job, "epoch", key.epoch, "stream", key.stream, "lease", stream.Lease, "worker", id)
	return true
}

// pick chooses the worker for a stream: the one with the fewest running streams, then with the fewest held, then the one that
// came first. Workers that failed the stream before come last.
func (c *Core) pick(loads map[string]*load, w *want, stream *pecanv1.StoredStream, needRoom bool) string {
	if id, decided := c.pickByPlace(loads, w.job, stream, needRoom); decided {
		return id
	}
	avoid := c.soft(streamKey{w.job.JobId, w.epoch.Epoch, stream.Stream}).avoid
	best, bestRank := "", [4]int{}
	for _, id := range sortedKeys(c.workers) {
		worker, l := c.workers[id], loads[id]
		if !c.usable(worker) || needRoom && !room(worker, l) {
			continue
		}
		rank := [4]int{0, 0, l.running, l.held}
		if slices.Contains(avoid, id) {
			rank[0] = 1
		}
		if w.ahead || w.job.Options.GetMode() == pecanv1.Mode_MODE_OFF {
			rank[1] = streamsOn(w.epoch, id)
		}
		order := slices.Compare(rank[:], bestRank[:])
		if best == "" || order < 0 || order == 0 && worker.order < c.workers[best].order {
			best, bestRank = id, rank
		}
	}
	return best
}

func room(worker *workerState, l *load) bool {
	return l.running < int(worker.maxStreams) && l.held < heldPerSlot*int(worker.maxStreams)
}

func streamsOn(epoch *pecanv1.StoredEpoch, workerID string) int {
	n := 0
	for _, stream := range epoch.Streams {
		if stream.Worker.GetWorkerId() == workerID && stream.Worker != nil && !stream.Delivered {
			n++
		}
	}
	return n
}

// pickByPlace gives stream i of a statically sharded job to the worker at place i of the configured list. While the
// service starts it waits for that worker; later anyone may stand in.
func (c *Core) pickByPlace(loads map[string]*load, job *pecanv1.StoredJob, stream *pecanv1.StoredStream, needRoom bool) (id string, decided bool) {
	n := len(c.cfg.WorkerAddresses)
	if n == 0 || !static(job) || isClosing(job, stream) {
		return "", false
	}
	place := int(stream.Stream) % n
	for _, id := range sortedKeys(c.workers) {
		if worker := c.workers[id]; c.placeOf(worker.address.GetTcp()) == place && c.usable(worker) {
			if needRoom && !room(worker, loads[id]) {
				return "", true
			}
			return id, true
		}
	}
	return "", c.now < c.cfg.DeadAfter
}

func (c *Core) startCommand(job *pecanv1.StoredJob, epoch *pecanv1.StoredEpoch, stream *pecanv1.StoredStream) *pecanv1.WorkerCommand {
	key := streamKey{job.JobId, epoch.Epoch, stream.Stream}
	dataset := c.state.datasets[job.DatasetId]
	start := &pecanv1.StartStream{
		Id: key.id(), Lease: stream.Lease, Fingerprint: dataset.GetFingerprint(), Plan: job.Plan, Options: job.Options,
		Components: dataset.GetSpec().GetComponents(), Ahead: allAhead(epoch),
		OwnedBelow: stream.StartIndex, RemainderOnly: stream.Delivered,
	}
	if stream.Delivered {
		start.OwnedBelow = stream.Count
	}
	if isClosing(job, stream) {
		start.Closing = true
		for _, source := range epoch.Streams[:len(epoch.Streams)-1] {
			start.Remainders = append(start.Remainders, &pecanv1.RemainderSource{
				Stream: source.Stream, Lease: source.Lease, Worker: source.Worker, Ready: source.Produced, Rows: source.RemainderRows,
			})
		}
		c.soft(key).remainders = start
	}
	return &pecanv1.WorkerCommand{Kind: &pecanv1.WorkerCommand_Start{Start: start}}
}

// pushRemainders tells the holders of closing streams what changed about the streams they wait for.
func (c *Core) pushRemainders() {
	for _, job := range c.state.ordered {
		if !hasClosing(job.Plan) {
			continue
		}
		for _, epoch := range job.Epochs {
			if len(epoch.Streams) == 0 {
				continue
			}
			stream := epoch.Streams[len(epoch.Streams)-1]
			if stream.Worker == nil || stream.Produced {
				continue
			}
			soft := c.soft(streamKey{job.JobId, epoch.Epoch, stream.Stream})
			sent := soft.remainders
			command := c.startCommand(job, epoch, stream)
			if sent == nil || !sameRemainders(sent.Remainders, command.GetStart().Remainders) {
				c.command(stream.Worker.WorkerId, command)
			}
		}
	}
}

func sameRemainders(a, b []*pecanv1.RemainderSource) bool {
	return slices.EqualFunc(a, b, func(x, y *pecanv1.RemainderSource) bool { return proto.Equal(x, y) })
}
