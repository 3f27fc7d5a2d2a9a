package main

import (
	"context"
	"fmt"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
)

// window bounds what arrives before it is read. Workers and trainers have the same one.
const window = 4 << 20

// reportAfter is how long a worker collects starts and ends of streams before it reports them in lists.
const reportAfter = 20 * time.Millisecond

// worker plays a worker: it runs at most slots streams at once, and the others in the order in which they came.
type worker struct {
	fleet     *fleet
	number    int
	ctx       context.Context
	cancel    context.CancelFunc
	conn      *grpc.ClientConn
	stream    grpc.BidiStreamingClient[pecanv1.WorkerMessage, pecanv1.WorkerCommand]
	heartbeat time.Duration
	periods   chan time.Duration

	mu sync.Mutex
	// held has the lease of each stream that the dispatcher has given and not taken back.
	held map[streamKey]*held
	// waiting are streams that have no slot yet.
	waiting []streamKey
	running int
	started map[epochKey]*pecanv1.StreamsStarted
	ended   map[epochKey]*pecanv1.StreamsEnded
	// report wakes write when starts and ends are due. It runs only while there are some, because 1,000 tickers would cost
	// as much as the messages.
	report    *time.Timer
	reporting bool
}

type epochKey struct {
	job   string
	epoch uint64
}

// held is a stream of a worker.
type held struct {
	lease   uint64
	since   time.Time
	running bool
	timer   *time.Timer
}

// connect registers a worker. Its session lives as long as ctx; registering takes no longer than registering lives.
func (f *fleet) connect(ctx, registering context.Context, number int) (*worker, error) {
	conn, err := grpc.NewClient(f.options.dispatcher, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithStatsHandler(&f.toWorkers), grpc.WithStaticStreamWindowSize(window), grpc.WithStaticConnWindowSize(window),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(64<<20)))
	if err != nil {
		return nil, err
	}
	w := &worker{fleet: f, number: number, conn: conn, held: map[streamKey]*held{}, report: time.NewTimer(time.Hour), periods: make(chan time.Duration, 1)}
	w.ctx, w.cancel = context.WithCancel(ctx)
	w.clear()
	failed := context.AfterFunc(registering, w.cancel)
	defer failed()
	if w.stream, err = pecanv1.NewDispatcherClient(conn).WorkerSession(w.ctx); err != nil {
		return nil, err
	}
	hello := &pecanv1.WorkerHello{
		Address:    &pecanv1.WorkerAddress{WorkerId: fmt.Sprintf("worker-%d", number), Tcp: fmt.Sprintf("127.0.0.1:%d", 10_000+number), HostId: "fleet"},
		MaxStreams: int32(f.options.slots), Cores: int32(f.options.slots), Version: "fleet", TensorflowVersion: "2.21.0", Kind: "remote", Number: 1,
	}
	if err := w.stream.Send(&pecanv1.WorkerMessage{Kind: &pecanv1.WorkerMessage_Hello{Hello: hello}}); err != nil {
		return nil, err
	}
	command, err := w.stream.Recv()
	if err != nil {
		return nil, err
	}
	w.heartbeat = seconds(command.GetWelcome().GetHeartbeatS())
	return w, nil
}

// run executes commands until the session ends.
func (w *worker) run() {
	defer w.conn.Close()
	defer w.cancel()
	done := make(chan struct{})
	go func() {
		defer close(done)
		w.write()
	}()
	for {
		command, err := w.stream.Recv()
		if err != nil {
			w.cancel()
			<-done
			return
		}
		w.handle(command)
	}
}

func (w *worker) handle(command *pecanv1.WorkerCommand) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ctx.Err() != nil {
		return
	}
	switch kind := command.GetKind().(type) {
	case *pecanv1.WorkerCommand_SetHeartbeat:
		select {
		case <-w.periods:
		default:
		}
		w.periods <- seconds(kind.SetHeartbeat.GetPeriodS())
	case *pecanv1.WorkerCommand_Start:
		w.hold(kind.Start.GetId().Key(), kind.Start.GetLease())
	case *pecanv1.WorkerCommand_StartStreams:
		list := kind.StartStreams
		for _, start := range list.GetStreams() {
			w.hold(streamKey{Job: list.GetJobId(), Epoch: list.GetEpoch(), Stream: start.GetId().GetStream()}, start.GetLease())
		}
	case *pecanv1.WorkerCommand_Stop:
		w.release(kind.Stop.GetId().Key())
	case *pecanv1.WorkerCommand_StopStreams:
		list, number := kind.StopStreams, int64(0)
		if list.GetOver() {
			for key := range w.held {
				if key.Job == list.GetJobId() && key.Epoch == list.GetEpoch() {
					w.release(key)
				}
			}
		}
		for _, difference := range list.GetStreams() {
			number += difference
			w.release(streamKey{Job: list.GetJobId(), Epoch: list.GetEpoch(), Stream: uint32(number)})
		}
	}
	w.fill()
}

// hold keeps a stream until it is released. Called with mu.
func (w *worker) hold(key streamKey, lease uint64) {
	if was := w.held[key]; was != nil {
		was.lease = max(was.lease, lease)
		return
	}
	w.held[key] = &held{lease: lease}
	w.waiting = append(w.waiting, key)
}

// release drops a stream. Called with mu.
func (w *worker) release(key streamKey) {
	was := w.held[key]
	if was == nil {
		return
	}
	delete(w.held, key)
	if was.running {
		was.timer.Stop()
		w.running--
		w.fleet.stopped(was.since)
	}
}

// fill starts streams that wait, while there are free slots. Called with mu.
func (w *worker) fill() {
	for w.running < w.fleet.options.slots && len(w.waiting) > 0 {
		key := w.waiting[0]
		w.waiting = w.waiting[1:]
		stream := w.held[key]
		if stream == nil || stream.running {
			continue
		}
		stream.running, stream.since = true, time.Now()
		w.running++
		w.fleet.started(key, stream.lease, w.number)
		list := w.started[epochOf(key)]
		if list == nil {
			list = &pecanv1.StreamsStarted{JobId: key.Job, Epoch: key.Epoch}
			w.started[epochOf(key)] = list
		}
		list.Streams, list.Leases = append(list.Streams, int64(key.Stream)), append(list.Leases, int64(stream.lease))
		w.reportSoon()
		stream.timer = time.AfterFunc(w.fleet.options.work, func() { w.end(key) })
	}
}

// end ends a stream that has run its time.
func (w *worker) end(key streamKey) {
	w.mu.Lock()
	defer w.mu.Unlock()
	stream := w.held[key]
	if stream == nil || !stream.running {
		return
	}
	stream.running = false
	w.running--
	w.fleet.stopped(stream.since)
	list := w.ended[epochOf(key)]
	if list == nil {
		list = &pecanv1.StreamsEnded{JobId: key.Job, Epoch: key.Epoch}
		w.ended[epochOf(key)] = list
	}
	list.Streams, list.Leases = append(list.Streams, int64(key.Stream)), append(list.Leases, int64(stream.lease))
	list.Counts = append(list.Counts, 1)
	w.reportSoon()
	w.fill()
}

// reportSoon makes write report what was collected. Called with mu.
func (w *worker) reportSoon() {
	if !w.reporting {
		w.reporting = true
		w.report.Reset(reportAfter)
	}
}

// write sends heartbeats and reports until the session ends, or until the worker has to disappear.
func (w *worker) write() {
	due, timer := time.Now().Add(w.heartbeat), time.NewTimer(w.heartbeat)
	defer timer.Stop()
	defer w.report.Stop()
	var death <-chan struct{}
	if w.number < w.fleet.options.kill {
		death = w.fleet.deaths
	}
	for {
		var messages []*pecanv1.WorkerMessage
		select {
		case <-w.ctx.Done():
			return
		case period := <-w.periods:
			left := time.Duration(float64(time.Until(due)) * float64(period) / float64(w.heartbeat))
			w.heartbeat, due = period, time.Now().Add(left)
			timer.Reset(left)
		case <-timer.C:
			due = time.Now().Add(w.heartbeat)
			timer.Reset(w.heartbeat)
			messages = []*pecanv1.WorkerMessage{{Kind: &pecanv1.WorkerMessage_Heartbeat{Heartbeat: w.load()}}}
		case <-death:
			w.die()
			return
		case <-w.report.C:
			messages = w.reports()
		}
		for _, message := range messages {
			if w.stream.Send(message) != nil {
				return
			}
		}
	}
}

// load is the heartbeat. Every stream that has ended is read to its end.
func (w *worker) load() *pecanv1.WorkerHeartbeat {
	w.mu.Lock()
	defer w.mu.Unlock()
	loads := make([]*pecanv1.WorkerHeartbeat_StreamLoad, 0, len(w.held))
	for key, stream := range w.held {
		loads = append(loads, &pecanv1.WorkerHeartbeat_StreamLoad{Id: key.ID(), Lease: stream.lease, Opened: !stream.since.IsZero()})
	}
	return &pecanv1.WorkerHeartbeat{Streams: pecanv1.PackLoads(loads)}
}

// reports takes what has to be reported since the last call.
func (w *worker) reports() []*pecanv1.WorkerMessage {
	w.mu.Lock()
	defer w.mu.Unlock()
	var found []*pecanv1.WorkerMessage
	for _, list := range w.started {
		differences(list.Streams)
		differences(list.Leases)
		found = append(found, &pecanv1.WorkerMessage{Kind: &pecanv1.WorkerMessage_StreamsStarted{StreamsStarted: list}})
	}
	for _, list := range w.ended {
		differences(list.Streams)
		differences(list.Leases)
		found = append(found, &pecanv1.WorkerMessage{Kind: &pecanv1.WorkerMessage_StreamsEnded{StreamsEnded: list}})
	}
	w.clear()
	return found
}

func (w *worker) clear() {
	w.started, w.ended, w.reporting = map[epochKey]*pecanv1.StreamsStarted{}, map[epochKey]*pecanv1.StreamsEnded{}, false
}

// die ends the connection without a goodbye, as the death of a process does.
func (w *worker) die() {
	w.mu.Lock()
	defer w.mu.Unlock()
	var lost []streamKey
	for key, stream := range w.held {
		if stream.running {
			stream.timer.Stop()
			lost = append(lost, key)
		}
	}
	w.held, w.waiting, w.running = map[streamKey]*held{}, nil, 0
	w.fleet.died(lost)
	w.cancel()
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

func epochOf(key streamKey) epochKey { return epochKey{key.Job, key.Epoch} }

// differences replaces each number by its difference to the one before.
func differences(numbers []int64) {
	for at := len(numbers) - 1; at > 0; at-- {
		numbers[at] -= numbers[at-1]
	}
}
