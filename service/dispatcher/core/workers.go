package core

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/proto/reason"
	"github.com/pecan-ml/pecan/service/graph"
)

func (c *Core) hello(in Hello) error {
	msg := in.Message
	id := msg.GetAddress().GetWorkerId()
	if msg.ClusterId != "" && msg.ClusterId != c.state.clusterID {
		return reason.New(reason.ClusterMismatch, "register worker %s: it belongs to cluster %s and this dispatcher is cluster %s; a dispatcher without a work directory is a new cluster after each start. Drop what is held and register without a cluster", id, msg.ClusterId, c.state.clusterID)
	}
	if known := c.workers[id]; known != nil && msg.Number != 0 && msg.Number <= known.connection {
		// It would name what the worker held then.
		return reason.New(reason.Unavailable, "register worker %s: it has registered on a newer connection", id)
	}
	if err := c.checkPlace(id, msg.GetAddress().GetTcp()); err != nil {
		return err
	}
	if err := c.takeAddress(id, msg.GetAddress().GetTcp()); err != nil {
		return err
	}
	worker := c.workers[id]
	if worker == nil {
		worker = &workerState{order: uint64(len(c.workers)) + c.versions}
		c.versions++
		c.workers[id] = worker
	} else if worker.session != 0 {
		c.endSession(worker.session, reason.New(reason.Closed, "worker %s registered again on a newer connection", id))
		c.loseTrialsOn(worker.session, "worker "+id+" registered again", true)
	}
	*worker = workerState{
		address: msg.Address, session: in.Session, order: worker.order, maxStreams: msg.MaxStreams, cores: msg.Cores,
		tensorflow: msg.TensorflowVersion, version: msg.Version, where: msg.Placement, graphProducer: msg.GraphProducer, lastBeat: c.now, caches: msg.Caches,
		connection: msg.Number,
	}
	c.sessions[in.Session] = id
	c.command(id, &pecanv1.WorkerCommand{Kind: &pecanv1.WorkerCommand_Welcome{Welcome: &pecanv1.Welcome{
		ClusterId: c.state.clusterID, HeartbeatS: c.cfg.Heartbeat.Seconds(), LeaseTtlS: c.cfg.LeaseTTL.Seconds(),
	}}})
	c.event("worker registered", "worker", id, "tcp", msg.Address.Tcp, "max_streams", msg.MaxStreams, "placement", msg.Placement, "held", len(msg.Held))
	// What it was told before may never have come to it; what it still holds of that it names.
	c.forgetClosing(func(run closingRun) bool { return run.worker == id })
	c.believeAhead(id, msg)
	c.reconcile(id, msg.Held)
	c.dirty = true
	return nil
}

// takeAddress gives a worker the address of one that is gone: a process listens where that one did. One that is heard keeps
// its address, since two that advertise the same would otherwise take it from each other for ever, with all their streams.
func (c *Core) takeAddress(id, tcp string) error {
	if tcp == "" {
		return nil
	}
	for _, otherID := range sortedKeys(c.workers) {
		other := c.workers[otherID]
		if otherID == id || other.address.GetTcp() != tcp {
			continue
		}
		if c.usable(other) {
			return reason.New(reason.WorkerUnknown, "register worker %s: worker %s is connected and has the same address %s; give each worker its own (--advertise, or --listen without it). If that worker is gone, its address is free %v after its last heartbeat", id, otherID, tcp, c.cfg.SuspectAfter)
		}
		c.loseWorker(otherID, true, "worker "+id+" took over its address")
	}
	return nil
}

// checkPlace holds a worker against the configured list. An entry is HOST:PORT, or HOST for any one worker on that host.
func (c *Core) checkPlace(id, tcp string) error {
	if len(c.cfg.WorkerAddresses) == 0 {
		return nil
	}
	place := c.placeOf(tcp)
	if place < 0 {
		return reason.New(reason.WorkerUnknown, "register worker %s: its address %s is not in the workers list of the dispatcher (--worker-addresses=%s); add it there, or start the worker with an address of the list", id, tcp, strings.Join(c.cfg.WorkerAddresses, ","))
	}
	for _, otherID := range sortedKeys(c.workers) {
		other := c.workers[otherID]
		if otherID != id && !other.away && other.address.GetTcp() != tcp && c.placeOf(other.address.GetTcp()) == place {
			return reason.New(reason.WorkerUnknown, "register worker %s: other workers are already running at the configured address %s (worker %s at %s)", id, c.cfg.WorkerAddresses[place], otherID, other.address.GetTcp())
		}
	}
	return nil
}

// placeOf is the position of an address in the configured list, -1 when it has none. Exact entries go first.
func (c *Core) placeOf(tcp string) int {
	if i := slices.Index(c.cfg.WorkerAddresses, tcp); i >= 0 {
		return i
	}
	colon := strings.LastIndexByte(tcp, ':')
	if colon < 0 {
		return -1
	}
	return slices.Index(c.cfg.WorkerAddresses, strings.Trim(tcp[:colon], "[]"))
}

// reconcile compares what a worker says it holds with the leases: what it holds rightly goes on, the rest is stopped,
// and what it should hold and does not is started.
func (c *Core) reconcile(workerID string, held []*pecanv1.HeldStream) {
	kept := map[streamKey]bool{}
	for _, h := range held {
		key := keyOf(h.GetId())
		job, epoch, stream := c.leased(workerID, h.GetId(), h.GetLease())
		if stream == nil {
			if job := c.state.jobs[key.job]; job != nil {
				c.takeBack(job, workerID, key, h.GetLease())
			} else {
				c.command(workerID, stopCommand(key, h.GetLease()))
			}
			continue
		}
		kept[key] = true
		soft := c.softNow(key, stream)
		soft.started = true
		if h.Ended {
			c.produced(job, epoch, stream, h.Count, h.RemainderRows)
		}
		if isClosing(job, stream) {
			soft.remainders = nil
		}
	}
	c.eachStream(func(job *pecanv1.StoredJob, epoch *pecanv1.StoredEpoch, stream *pecanv1.StoredStream) {
		key := streamKey{job.JobId, epoch.Epoch, stream.Stream}
		if stream.Worker.GetWorkerId() != workerID || kept[key] {
			return
		}
		if stream.Produced || !graph.Repeats(job.Plan) && c.begun(key, stream) {
			// It had made all of it and has lost it: it has to be made again. So has one of which another run may give other elements.
			c.loseLease(key, stream, pecanv1.LeaseLost_MOVED, "worker "+workerID+" does not hold it any more")
			return
		}
		soft := c.soft(key)
		soft.newLease(stream.Lease, c.now)
		c.command(workerID, c.startCommand(job, epoch, stream))
	})
}

// leased finds a stream that the worker holds under the lease, or nothing.
func (c *Core) leased(workerID string, id *pecanv1.StreamId, lease uint64) (*pecanv1.StoredJob, *pecanv1.StoredEpoch, *pecanv1.StoredStream) {
	job, epoch, err := c.state.epoch(id.GetJobId(), id.GetEpoch())
	if err != nil || int64(id.GetStream()) >= int64(len(epoch.Streams)) {
		return nil, nil, nil
	}
	stream := epoch.Streams[id.GetStream()]
	if stream.Worker.GetWorkerId() != workerID || stream.Worker == nil || stream.Lease != lease {
		return nil, nil, nil
	}
	return job, epoch, stream
}

func (c *Core) eachStream(do func(*pecanv1.StoredJob, *pecanv1.StoredEpoch, *pecanv1.StoredStream)) {
	for _, job := range c.state.ordered {
		for _, epoch := range job.Epochs {
			for _, stream := range epoch.Streams {
				do(job, epoch, stream)
			}
		}
	}
}

func (c *Core) fromWorker(in FromWorker) error {
	id, ok := c.sessions[in.Session]
	if !ok {
		return nil
	}
	worker := c.workers[id]
	worker.lastBeat = c.now
	switch kind := in.Message.GetKind().(type) {
	case *pecanv1.WorkerMessage_Heartbeat:
		c.beat(id, worker, kind.Heartbeat)
	case *pecanv1.WorkerMessage_Started:
		if _, _, stream := c.leased(id, kind.Started.GetId(), kind.Started.GetLease()); stream != nil {
			c.hasOpened(keyOf(kind.Started.Id), stream)
		}
	case *pecanv1.WorkerMessage_Ended:
		r := kind.Ended
		job, epoch, stream := c.leased(id, r.GetId(), r.GetLease())
		if stream == nil {
			c.command(id, stopCommand(keyOf(r.GetId()), r.GetLease()))
			return nil
		}
		c.produced(job, epoch, stream, r.Count, r.RemainderRows)
	case *pecanv1.WorkerMessage_Failed:
		c.streamFailed(id, kind.Failed)
	case *pecanv1.WorkerMessage_Stopped:
		c.stopped(id, keyOf(kind.Stopped.GetId()))
	case *pecanv1.WorkerMessage_CacheSegmentWritten:
		c.cacheWritten(id, kind.CacheSegmentWritten.GetSegment())
	case *pecanv1.WorkerMessage_CacheSegmentInvalid:
		c.cacheSpoilt(id, kind.CacheSegmentInvalid)
	case *pecanv1.WorkerMessage_CacheFiles:
		c.cacheFiles(id, kind.CacheFiles)
	case *pecanv1.WorkerMessage_Metrics:
		c.figures(id, kind.Metrics)
	case *pecanv1.WorkerMessage_OrderTried:
		c.orderTried(in.Session, worker, kind.OrderTried)
	case *pecanv1.WorkerMessage_Goodbye:
		c.loseWorker(id, false, "worker "+id+" said goodbye")
		c.endSession(in.Session, nil)
	case *pecanv1.WorkerMessage_Hello:
		return reason.New(reason.BadArgument, "worker %s: hello is the first message only", id)
	}
	return nil
}

func (c *Core) beat(id string, worker *workerState, beat *pecanv1.WorkerHeartbeat) {
	worker.cpuSeconds, worker.residentBytes, worker.cached = beat.CpuS, beat.ResidentBytes, beat.Cache
	worker.leaving = beat.Leaving
	for _, load := range beat.Streams {
		job, _, stream := c.leased(id, load.GetId(), load.GetLease())
		if stream == nil {
			c.command(id, stopCommand(keyOf(load.GetId()), load.GetLease()))
			continue
		}
		soft := c.progressed(keyOf(load.Id), stream, load)
		if soft.unread = load.Drained && load.Unread; load.Drained && (load.Unread || !stream.Produced) {
			// Of what has been made and read to its end, its reader's word is under way.
			c.takeBack(job, id, keyOf(load.Id), stream.Lease)
			c.loseLease(keyOf(load.Id), stream, pecanv1.LeaseLost_MOVED, "worker "+id+" is about to leave")
		}
	}
}

// progressed notes how far a worker has come with a stream that is leased to it.
func (c *Core) progressed(key streamKey, stream *pecanv1.StoredStream, load *pecanv1.WorkerHeartbeat_StreamLoad) *streamState {
	soft := c.softNow(key, stream)
	if load.Opened {
		c.hasOpened(key, stream)
	}
	soft.produced = max(soft.produced, load.Produced)
	soft.had, soft.clean = max(soft.had, min(load.Acked, load.Produced)), max(soft.clean, min(load.CleanBelow, load.Acked))
	if acked := min(load.Acked, load.Produced); acked > soft.acked {
		// Its client reads, whatever it reported before.
		soft.acked, soft.reports, soft.reported = acked, 0, ""
	}
	return soft
}

// produced notes that a worker made the last element of a stream.
func (c *Core) produced(job *pecanv1.StoredJob, epoch *pecanv1.StoredEpoch, stream *pecanv1.StoredStream, count, rows uint64) {
	if stream.Produced {
		return
	}
	key := streamKey{job.JobId, epoch.Epoch, stream.Stream}
	exact := job.Options.GetMode() == pecanv1.Mode_MODE_EXACTLY_ONCE || job.Options.GetMode() == pecanv1.Mode_MODE_DETERMINISTIC
	if exact && (stream.Delivered && stream.Count != count || count < stream.StartIndex) {
		c.failStream(job, epoch, key, reason.New(reason.Internal, "%s gave %d elements when it was run again and %d before; a dataset read in mode exactly-once or deterministic has to give the same elements each time. Look for random filters, or for files that change", describe(key), count, max(stream.Count, stream.StartIndex)).Detail())
		return
	}
	c.emit(&pecanv1.Record{Kind: &pecanv1.Record_StreamProduced{StreamProduced: &pecanv1.StreamProduced{
		Id: key.id(), Lease: stream.Lease, Count: count, RemainderRows: rows,
	}}})
}

// streamFailed moves a stream whose failure may be the worker's, and fails the epoch otherwise.
func (c *Core) streamFailed(workerID string, r *pecanv1.StreamFailed) {
	key := keyOf(r.GetId())
	job, epoch, stream := c.leased(workerID, r.GetId(), r.GetLease())
	if stream == nil {
		c.command(workerID, stopCommand(key, r.GetLease()))
		return
	}
	detail := r.GetError()
	if r.GetBelowWindow() {
		c.warn("a reader wants elements that are gone, leasing the stream again", "job", key.job, "epoch", key.epoch, "stream", key.stream, "lease", stream.Lease, "worker", workerID, "error", detail.GetMessage())
		c.takeBack(job, workerID, key, stream.Lease)
		c.loseLease(key, stream, pecanv1.LeaseLost_MOVED, detail.GetMessage())
		return
	}
	switch codes.Code(detail.GetCode()) {
	case codes.Unavailable, codes.Aborted, codes.DeadlineExceeded, codes.Canceled:
		if int(stream.Failures)+1 < c.cfg.MaxFailures {
			soft := c.soft(key)
			soft.avoid = append(soft.avoid, workerID)
			c.warn("stream failed, leasing it again", "job", key.job, "epoch", key.epoch, "stream", key.stream, "lease", stream.Lease, "worker", workerID, "error", detail.GetMessage())
			if job.Plan.GetWritesFiles() {
				// It has failed and is not closed: its files go with it.
				c.takeBack(job, workerID, key, stream.Lease)
			}
			c.loseLease(key, stream, pecanv1.LeaseLost_FAILED, fmt.Sprintf("worker %s: %s", workerID, detail.GetMessage()))
			return
		}
		detail = &pecanv1.ErrorDetail{Code: detail.GetCode(), Reason: detail.GetReason(), Message: fmt.Sprintf(
			"%s failed %d times, the last time on worker %s: %s", describe(key), c.cfg.MaxFailures, workerID, detail.GetMessage())}
	}
	if detail.GetCode() == int32(codes.OK) {
		detail = reason.New(reason.Internal, "%s failed on worker %s: %s", describe(key), workerID, detail.GetMessage()).Detail()
	}
	c.failStream(job, epoch, key, detail)
}

func (c *Core) reportWorker(req *pecanv1.ReportWorkerRequest) error {
	job, _, stream, err := c.openStream("report worker", req.ClientId, req.Id)
	if err != nil || stream == nil {
		return err
	}
	key := keyOf(req.Id)
	if stream.Worker == nil || stream.Lease != req.Lease || stream.Worker.WorkerId != req.WorkerId || stream.Consumer != req.ClientId {
		return nil
	}
	soft := c.soft(key)
	if req.Number != 0 && soft.reporter == req.ClientId && req.Number <= soft.reportNumber {
		// It was told before, and what it was about may be over.
		return nil
	}
	soft.reporter, soft.reportNumber = req.ClientId, req.Number
	if soft.lease == req.Lease {
		soft.produced = max(soft.produced, req.NextIndex)
	}
	worker := c.workers[req.WorkerId]
	if worker != nil && worker.restored && soft.reports == 0 {
		// It may be a copy of a report to the dispatcher that ran before this one, and the worker on its way. Who cannot reach it says so again.
		soft.reports++
		return nil
	}
	if worker == nil || worker.away {
		// Two witnesses: its session is broken, and a client cannot reach it.
		c.loseWorker(req.WorkerId, true, "its session is broken and client "+req.ClientId+" cannot reach it")
		return nil
	}
	soft.reports++
	soft.reported, c.dirty = req.Message, true
	if soft.reports < 3 && c.now-soft.leasedAt < c.cfg.SuspectAfter || !c.otherWorker(req.WorkerId, soft.avoid) {
		return nil
	}
	soft.avoid = append(soft.avoid, req.WorkerId)
	c.warn("moving a stream that its client cannot read", "job", key.job, "epoch", key.epoch, "stream", key.stream, "lease", stream.Lease, "worker", req.WorkerId, "error", req.Message)
	c.takeBack(job, req.WorkerId, key, stream.Lease)
	c.loseLease(key, stream, pecanv1.LeaseLost_MOVED, "client "+req.ClientId+" could not read it from worker "+req.WorkerId)
	return nil
}

// otherWorker tells whether a stream has somewhere else to go.
func (c *Core) otherWorker(than string, avoid []string) bool {
	for id, worker := range c.workers {
		if id != than && !slices.Contains(avoid, id) && c.usable(worker) {
			return true
		}
	}
	return false
}

// usable workers may get streams.
func (c *Core) usable(worker *workerState) bool {
	return !worker.away && !worker.leaving && c.now-worker.lastBeat <= c.cfg.SuspectAfter
}

// sessionEnded gives the worker a moment to come back.
func (c *Core) sessionEnded(session SessionID) {
	id, ok := c.sessions[session]
	if !ok {
		return
	}
	delete(c.sessions, session)
	worker := c.workers[id]
	worker.session, worker.away, worker.awayUntil = 0, true, c.now+c.cfg.ReturnGrace
	c.event("worker away", "worker", id)
	c.loseTrialsOn(session, "the connection of worker "+id+" broke", true)
	c.dirty = true
}

func (c *Core) expireWorkers() {
	for _, id := range sortedKeys(c.workers) {
		worker := c.workers[id]
		switch {
		case worker.away && c.now >= worker.awayUntil:
			c.loseWorker(id, true, "worker "+id+" did not come back")
		case !worker.away && c.now-worker.lastBeat > c.cfg.DeadAfter:
			c.loseWorker(id, true, fmt.Sprintf("worker %s was silent for %v", id, (c.now-worker.lastBeat).Round(time.Millisecond)))
		}
	}
}

// loseWorker takes all streams from a worker and forgets it.
func (c *Core) loseWorker(id string, died bool, why string) {
	worker := c.workers[id]
	if worker == nil {
		return
	}
	delete(c.workers, id)
	c.forgetClosing(func(run closingRun) bool { return run.worker == id })
	if worker.session != 0 {
		delete(c.sessions, worker.session)
		c.loseTrialsOn(worker.session, why, died)
		if died {
			c.endSession(worker.session, reason.New(reason.Unavailable, "worker %s counts as dead: %s; register again", id, why))
		}
	}
	c.event("worker lost", "worker", id, "tcp", worker.address.GetTcp(), "why", why)
	c.dirty = true
	c.eachStream(func(job *pecanv1.StoredJob, epoch *pecanv1.StoredEpoch, stream *pecanv1.StoredStream) {
		if stream.Worker.GetWorkerId() != id {
			return
		}
		key := streamKey{job.JobId, epoch.Epoch, stream.Stream}
		mark := c.soft(key).mark
		if worker.trying {
			// It may have died of the order that it was trying: that counts against the order, not against an element.
			c.soft(key).crashed = false
		}
		first, below, ahead, suspicious := c.diedAt(key, stream, worker.crash != "")
		suspicious = suspicious && !worker.trying
		if opening := c.crashedOpening(key, stream); !died || !suspicious || opening {
			c.loseLease(key, stream, pecanv1.LeaseLost_MOVED, why)
			if opening && int(stream.OpeningCrashes) >= c.cfg.MaxCrashes {
				c.blameOpening(key, job, stream, worker)
			}
			return
		}
		c.loseToDeath(key, stream, &pecanv1.LeaseLost{
			Id: key.id(), Lease: stream.Lease, Cause: pecanv1.LeaseLost_DIED, Progress: first, SuspectBelow: below, InFlight: ahead, Why: why,
			Truncated: c.cutsOff(key, stream), Crashed: worker.crash != "", OpeningCrashes: c.openingCrashes(key, stream),
		})
		if int(stream.Crashes) >= c.cfg.MaxCrashes || int(stream.Deaths) >= c.cfg.MaxDeaths {
			c.blame(key, job, stream, mark, worker)
		}
	})
}

func (c *Core) loseLease(key streamKey, stream *pecanv1.StoredStream, cause pecanv1.LeaseLost_Cause, why string) {
	soft := c.soft(key)
	progress := uint64(0)
	if soft.lease == stream.Lease {
		progress = soft.produced
	}
	c.emit(&pecanv1.Record{Kind: &pecanv1.Record_LeaseLost{LeaseLost: &pecanv1.LeaseLost{
		Id: key.id(), Lease: stream.Lease, Cause: cause, Progress: progress, Why: why, Truncated: c.cutsOff(key, stream),
		OpeningCrashes: c.openingCrashes(key, stream), Serial: stream.Serial,
	}}})
}

func (c *Core) endSession(session SessionID, err *reason.Error) {
	delete(c.sessions, session)
	c.effect(EndSession{session, err})
}

// command goes to a worker that is connected; one that is away is told when it comes back and lists what it holds.
func (c *Core) command(workerID string, message *pecanv1.WorkerCommand) {
	if worker := c.workers[workerID]; worker != nil && worker.session != 0 {
		c.effect(Command{worker.session, message})
	}
}

func stopCommand(key streamKey, lease uint64) *pecanv1.WorkerCommand {
	return &pecanv1.WorkerCommand{Kind: &pecanv1.WorkerCommand_Stop{Stop: &pecanv1.StopStream{Id: key.id(), Lease: lease}}}
}
