package core

import (
	"cmp"
	"container/heap"
	"slices"

	"google.golang.org/protobuf/proto"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/graph"
)

// heldPerSlot bounds how many streams a worker keeps that it has made but that are not read to their end.
const heldPerSlot = 4

// needed tells whether a worker has to hold a stream.
func needed(job *pecanv1.StoredJob, epoch *pecanv1.StoredEpoch, stream *pecanv1.StoredStream) bool {
	if job.Error != nil || epoch.Error != nil || len(epoch.Passes) == 0 || stream.Truncated {
		return false
	}
	if !stream.Delivered {
		return true
	}
	if !job.Plan.HasClosing() || isClosing(job, stream) || epoch.Streams[len(epoch.Streams)-1].Delivered {
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
		if !isClosing(job, stream) && !stream.Produced && !stream.Truncated {
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
		key := streamKey{job.JobId, epoch.Epoch, stream.Stream}
		c.endCutOff(key, stream)
		if stream.Worker == nil || needed(job, epoch, stream) {
			return
		}
		c.takeBack(job, stream.Worker.WorkerId, key, stream.Lease)
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

// load of a worker.
type load struct {
	running, held int
	// ahead has the jobs of which the worker holds a stream of an epoch opened ahead of need. Those streams are not among the
	// others: each has made one element at most and waits, perhaps for ever, and must not keep others from the slot.
	ahead map[string]bool
}

// want is an epoch with streams that wait for a worker.
type want struct {
	job     *pecanv1.StoredJob
	epoch   *pecanv1.StoredEpoch
	waiting []*pecanv1.StoredStream
	// running streams of the epoch, and those held and not read to their end.
	running, held int
	ahead         bool
	// order in which epochs came; breaks ties.
	order int
	// skipped: a stream found no worker, or waits for its files, so the closing stream's turn has not come.
	skipped bool
}

// leasing is one pass in which streams that wait are given to workers.
type leasing struct {
	loads map[string]*load
	// ids of the workers, sorted.
	ids []string
	// full: no worker has room for a stream that may go anywhere. Room only gets less in a pass.
	full bool
}

func (c *Core) survey() (*leasing, []*want) {
	pass := &leasing{loads: map[string]*load{}, ids: sortedKeys(c.workers)}
	for _, id := range pass.ids {
		pass.loads[id] = &load{ahead: map[string]bool{}}
	}
	var wants []*want
	for _, job := range c.state.ordered {
		for _, epoch := range job.Epochs {
			w := &want{job: job, epoch: epoch, ahead: allAhead(epoch), order: len(wants)}
			first := c.opensFirst(job, epoch)
			for _, stream := range epoch.Streams {
				switch {
				case !waiting(job, epoch, stream):
				case first != nil && first != stream && stream.OpeningCrashes > 0:
					w.skipped = true
				case len(c.closingBefore(job, stream)) > 0:
					w.skipped = true
				default:
					w.waiting = append(w.waiting, stream)
				}
				if stream.Worker == nil {
					continue
				}
				if running(job, epoch, stream) {
					w.running++
				}
				if !stream.Delivered {
					w.held++
				}
				if l := pass.loads[stream.Worker.WorkerId]; l != nil {
					w.charge(l, stream)
				}
			}
			if len(w.waiting) > 0 {
				wants = append(wants, w)
			}
		}
	}
	return pass, wants
}

// charge adds a leased stream of the epoch to the load of its worker. Of an epoch opened ahead one stream is leased to a worker;
// what a worker holds beyond that was begun for a trainer that has left since, and is charged like any other.
func (w *want) charge(l *load, stream *pecanv1.StoredStream) {
	if w.ahead && !stream.Delivered && !l.ahead[w.job.JobId] {
		l.ahead[w.job.JobId] = true
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
// streams go in order. Epochs opened ahead come last, take only slots that are free (see fits), and get one stream per worker at
// most, also where all must be open: the rest is leased when a client adopts the epoch, which may never be.
func (c *Core) assignLeases() {
	pass, wants := c.survey()
	for _, w := range wants {
		switch {
		case w.ahead:
		case allAtOnce(w.job):
			for len(w.waiting) > 0 && c.leaseNext(pass, w, false) {
			}
		case w.held == 0:
			c.leaseNext(pass, w, false)
		}
	}
	queue := wantQueue(slices.DeleteFunc(wants, func(w *want) bool { return len(w.waiting) == 0 }))
	heap.Init(&queue)
	for len(queue) > 0 {
		next := queue[0]
		if !c.leaseNext(pass, next, true) {
			if next.skipped = true; static(next.job) {
				// The next stream may belong to another place.
				next.waiting = next.waiting[1:]
			} else {
				next.waiting = nil
			}
		}
		if len(next.waiting) == 0 {
			heap.Pop(&queue)
		} else {
			heap.Fix(&queue, 0)
		}
	}
}

// wantQueue is a heap, with the epoch whose turn is next on top.
type wantQueue []*want

// Len implements heap.Interface.
func (q wantQueue) Len() int { return len(q) }

// Less implements heap.Interface: what is opened ahead comes last, then who has least comes first.
func (q wantQueue) Less(i, j int) bool {
	a, b := q[i], q[j]
	if a.ahead != b.ahead {
		return b.ahead
	}
	return cmp.Or(cmp.Compare(a.running, b.running), cmp.Compare(a.order, b.order)) < 0
}

// Swap implements heap.Interface.
func (q wantQueue) Swap(i, j int) { q[i], q[j] = q[j], q[i] }

// Push implements heap.Interface.
func (q *wantQueue) Push(w any) { *q = append(*q, w.(*want)) }

// Pop implements heap.Interface.
func (q *wantQueue) Pop() any {
	last := len(*q) - 1
	w := (*q)[last]
	*q = (*q)[:last]
	return w
}

// leaseNext leases the first waiting stream of an epoch, if a worker can be found.
func (c *Core) leaseNext(pass *leasing, w *want, needRoom bool) bool {
	stream := w.waiting[0]
	closing := isClosing(w.job, stream)
	if closing && w.skipped {
		return false
	}
	id := c.pick(pass, w, stream, needRoom && !closing)
	if id == "" {
		return false
	}
	w.waiting = w.waiting[1:]
	key := streamKey{w.job.JobId, w.epoch.Epoch, stream.Stream}
	c.emit(&pecanv1.Record{Kind: &pecanv1.Record_LeaseGranted{LeaseGranted: &pecanv1.LeaseGranted{
		Id: key.id(), Lease: c.nextLease(), Worker: c.workers[id].address, Restart: stream.Lease > 0 && graph.BeginsAnew(w.job.Plan, w.job.Options),
	}}})
	soft := c.soft(key)
	soft.newLease(stream.Lease, c.now)
	if !graph.Repeats(w.job.Plan) {
		// What readers had was of another run.
		soft.had, soft.clean = 0, 0
	}
	if !stream.Delivered && stream.Consumer != "" && findPass(w.epoch, stream.Consumer) == nil {
		// Who had read it to its end has left, and it is sent once more.
		c.emit(&pecanv1.Record{Kind: &pecanv1.Record_ConsumerReleased{ConsumerReleased: &pecanv1.ConsumerReleased{Id: key.id(), ClientId: stream.Consumer}}})
	}
	if running(w.job, w.epoch, stream) {
		w.running++
	}
	w.held++
	w.charge(pass.loads[id], stream)
	c.command(id, c.startCommand(w.job, w.epoch, stream))
	c.event("lease granted", "job", key.job, "epoch", key.epoch, "stream", key.stream, "lease", stream.Lease, "worker", id)
	return true
}

// pick chooses the worker for a stream: the one with the fewest running streams, then with the fewest held, then the one that
// came first. Workers that failed the stream before come last.
func (c *Core) pick(pass *leasing, w *want, stream *pecanv1.StoredStream, needRoom bool) string {
	if id, decided := c.pickByPlace(pass, w, stream, needRoom); decided {
		return id
	}
	if pass.full && needRoom {
		return ""
	}
	var avoid []string
	if soft := c.streams[streamKey{w.job.JobId, w.epoch.Epoch, stream.Stream}]; soft != nil {
		avoid = soft.avoid
	}
	best, bestRank := "", [5]int{}
	for _, id := range pass.ids {
		worker, l := c.workers[id], pass.loads[id]
		if !c.usable(worker) || !w.fits(worker, l, needRoom) {
			continue
		}
		rank := [5]int{0, 0, 0, l.running, l.held}
		if slices.Contains(avoid, id) {
			rank[0] = 1
		}
		if w.ahead {
			rank[1] = len(l.ahead)
		}
		if w.job.Options.GetMode() == pecanv1.Mode_MODE_OFF {
			rank[2] = streamsOn(w.epoch, id)
		}
		order := slices.Compare(rank[:], bestRank[:])
		if best == "" || order < 0 || order == 0 && worker.order < c.workers[best].order {
			best, bestRank = id, rank
		}
	}
	if best == "" && needRoom && !w.ahead {
		pass.full = true
	}
	return best
}

// fits tells whether a worker may get a stream of the epoch. One of an epoch opened ahead takes a slot that nothing else has, also
// where room is not asked for, and one for each job: so all jobs together have at most as many of them on a worker as it has slots,
// beside what runs. A trainer that finds none free has its next pass leased when it asks for it.
func (w *want) fits(worker *workerState, l *load, needRoom bool) bool {
	if w.ahead {
		return room(worker, l) && l.running+len(l.ahead) < int(worker.maxStreams) && !l.ahead[w.job.JobId]
	}
	return !needRoom || room(worker, l)
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
func (c *Core) pickByPlace(pass *leasing, w *want, stream *pecanv1.StoredStream, needRoom bool) (id string, decided bool) {
	n := len(c.cfg.WorkerAddresses)
	if n == 0 || !static(w.job) || isClosing(w.job, stream) {
		return "", false
	}
	place := int(stream.Stream) % n
	for _, id := range pass.ids {
		if worker := c.workers[id]; c.placeOf(worker.address.GetTcp()) == place && c.usable(worker) {
			if !w.fits(worker, pass.loads[id], needRoom) {
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
		Id: key.id(), Lease: stream.Lease, Fingerprint: dataset.GetFingerprint(), Plan: c.planOf(job, epoch, stream.Stream), Options: job.Options,
		Components: dataset.GetSpec().GetComponents(), Prefetch: allAhead(epoch),
		DeliveredBelow: stream.StartIndex, RemainderOnly: stream.Delivered, CleanBelow: c.soft(key).clean, AckedBelow: c.soft(key).had,
		Cache: c.cacheOrder(job, stream), CrashGuard: suspicion(stream), OpenAlone: stream.OpeningCrashes > 0,
	}
	if stream.Delivered {
		start.DeliveredBelow = stream.Count
	}
	if isClosing(job, stream) {
		start.Closing = true
		for _, source := range epoch.Streams[:len(epoch.Streams)-1] {
			start.Remainders = append(start.Remainders, &pecanv1.RemainderSource{
				Stream: source.Stream, Lease: source.Lease, Worker: source.Worker, Ready: source.Produced || source.Truncated, Rows: source.RemainderRows,
			})
		}
		c.soft(key).remainders = start
	}
	return &pecanv1.WorkerCommand{Kind: &pecanv1.WorkerCommand_Start{Start: start}}
}

// planOf is the plan by which a stream runs, whoever runs it and whenever: the job's, in the order that was decided before its epoch was
// opened, where the stream has that.
func (c *Core) planOf(job *pecanv1.StoredJob, epoch *pecanv1.StoredEpoch, stream uint32) *pecanv1.Plan {
	if !hasOrder(epoch, stream) {
		return job.Plan
	}
	key := passKey{job.JobId, epoch.Epoch}
	if c.orderedPlans[key] == nil {
		plan := proto.Clone(job.Plan).(*pecanv1.Plan)
		plan.Order = epoch.Order
		c.orderedPlans[key] = plan
	}
	return c.orderedPlans[key]
}

// pushRemainders tells the holders of closing streams what changed about the streams they wait for.
func (c *Core) pushRemainders() {
	for _, job := range c.state.ordered {
		if !job.Plan.HasClosing() {
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
