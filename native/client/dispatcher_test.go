package client

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/proto/reason"
)

// testDispatcher is a dispatcher whose answers a test scripts.
type testDispatcher struct {
	pecanv1.UnimplementedDispatcherServer
	t      testing.TB
	server *grpc.Server
	addr   string

	mu sync.Mutex
	// cluster is the id of the cluster; "" means "cluster".
	cluster string
	// Every job has this plan and these options.
	plan    *pecanv1.Plan
	options *pecanv1.JobOptions
	// updateOf returns the update of an epoch, with worker numbers of numberOf. Each update is sent as a full one.
	updateOf func(epoch uint64) *pecanv1.EpochUpdate
	version  uint64
	changed  chan struct{}
	epochs   uint64
	opened   []*pecanv1.OpenEpochRequest
	closed   []uint64
	// closings are the calls that closed them.
	closings []*pecanv1.CloseEpochRequest
	// adopted lists the epochs of AdoptEpoch. The first loseAdoptions calls fail as if the dispatcher were away.
	adopted       []uint64
	loseAdoptions int
	// closedBefore has, for each opening, the number of epochs closed before it. The first loseCloses closings fail.
	closedBefore []int
	loseCloses   int
	finished     []finishedReport
	released     []releasedReport
	reported     []*pecanv1.ReportWorkerRequest
	// delayHeartbeats delays the answers to heartbeats until it is closed. delayedHeartbeats counts them.
	delayHeartbeats   chan struct{}
	delayedHeartbeats int
	// holdOpens delays the opening of epochs; asksOpen is set if a client requested one meanwhile.
	holdOpens  chan struct{}
	asksOpen   bool
	heartbeats []*pecanv1.ClientHeartbeatRequest
	// wanted is the answer to heartbeats with local workers, nil without one. placement is the decision on workers that
	// heartbeats are answered with.
	wanted    *pecanv1.WantedLocalWorkers
	placement *pecanv1.Placement
	uploads   [][]byte
	goodbyes  int
	// asked counts the calls of CreateJob. statuses counts those of Status.
	asked, statuses int
	jobs            map[string]string
	// forget makes the client unknown to the dispatcher, as after a restart without a work directory.
	forget bool
	// delivered is set if other clients have read every epoch.
	delivered bool
	// known has the clients that have jobs. lost has the clients from before a restart. datasetLost is set if the client
	// must register the dataset again.
	known, lost map[string]bool
	datasetLost bool
	// timeoutS is the client timeout in seconds that the dispatcher reports; 0 means 10.
	timeoutS float64
	// seeds has the seeds of the requested jobs.
	seeds []uint64
	// durable is reported for every job.
	durable bool
	// epochUnknown is set if the dispatcher knows only epochs that begin at a position.
	epochUnknown bool
	// places has the requests that opened epochs by number, until the epochs are closed. A job has each epoch open once.
	places map[string]string
	// starts has the positions of epochs that do not begin at their start.
	starts map[uint64]*pecanv1.Position
	// orders has the step orders that are reported for epochs.
	orders map[uint64]*pecanv1.EpochOrder
}

func startDispatcher(t testing.TB, change ...func(*testDispatcher)) *testDispatcher {
	t.Helper()
	d := &testDispatcher{t: t, plan: &pecanv1.Plan{NumStreams: 1, Repeat: 1, Cardinality: -2, AssertedCardinality: -2, Hash: "h"}, options: &pecanv1.JobOptions{}, changed: make(chan struct{}), jobs: map[string]string{}, known: map[string]bool{}, lost: map[string]bool{}, starts: map[uint64]*pecanv1.Position{}, places: map[string]string{}}
	for _, c := range change {
		c(d)
	}
	d.listen("127.0.0.1:0")
	t.Cleanup(d.stop)
	return d
}

func (d *testDispatcher) listen(addr string) {
	d.t.Helper()
	var listener net.Listener
	var err error
	for range 50 {
		if listener, err = net.Listen("tcp", addr); err == nil {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	if err != nil {
		d.t.Fatal(err)
	}
	d.addr = listener.Addr().String()
	d.server = grpc.NewServer()
	pecanv1.RegisterDispatcherServer(d.server, d)
	server := d.server
	go func() { _ = server.Serve(listener) }()
}

// restart discards all state, as a restarted dispatcher without a work directory does.
func (d *testDispatcher) restart() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.lost, d.known, d.jobs, d.datasetLost = d.known, map[string]bool{}, map[string]string{}, true
}

func (d *testDispatcher) stop() { d.server.Stop() }

// update changes the dispatcher's state and pushes new updates.
func (d *testDispatcher) update(change func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	change()
	d.version++
	close(d.changed)
	d.changed = make(chan struct{})
}

// look reads the dispatcher's state under its lock.
func look[T any](d *testDispatcher, read func() T) T {
	d.mu.Lock()
	defer d.mu.Unlock()
	return read()
}

// pause waits until a channel is closed, if a test has set one, and notes before that a call waits.
func (d *testDispatcher) pause(ctx context.Context, read func() chan struct{}, note func()) error {
	channel := look(d, read)
	if channel == nil {
		return nil
	}
	d.update(note)
	select {
	case <-channel:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (d *testDispatcher) Status(context.Context, *pecanv1.StatusRequest) (*pecanv1.StatusResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.statuses++
	return &pecanv1.StatusResponse{ClusterId: d.clusterID(), Version: "test"}, nil
}

// clusterID returns the id of the cluster. The caller holds d.mu.
func (d *testDispatcher) clusterID() string { return cmp.Or(d.cluster, "cluster") }

func (d *testDispatcher) RegisterDataset(stream grpc.ClientStreamingServer[pecanv1.RegisterDatasetRequest, pecanv1.RegisterDatasetResponse]) error {
	var all []byte
	var header *pecanv1.RegisterDatasetRequest_Header
	for {
		m, err := stream.Recv()
		if err != nil {
			break
		}
		if h := m.GetHeader(); h != nil {
			header = h
			if h.GetGraphBytes() > 64<<20 {
				return reason.New(reason.MessageTooLarge, "graph of %d bytes, limit %d", h.GetGraphBytes(), 64<<20)
			}
		}
		all = append(all, m.GetChunk()...)
	}
	if int64(len(all)) != header.GetGraphBytes() {
		return reason.New(reason.GraphParse, "short")
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.uploads, d.datasetLost = append(d.uploads, all), false
	id := header.GetDatasetId()
	if id == "" {
		id = "f1"
	}
	return stream.SendAndClose(&pecanv1.RegisterDatasetResponse{DatasetId: id, Fingerprint: "f1", Created: true})
}

func (d *testDispatcher) GetDataset(_ context.Context, r *pecanv1.GetDatasetRequest) (*pecanv1.GetDatasetResponse, error) {
	if r.GetDatasetId() != "f1" {
		return nil, reason.New(reason.DatasetUnknown, "dataset %q is unknown", r.GetDatasetId())
	}
	return &pecanv1.GetDatasetResponse{DatasetId: "f1", Fingerprint: "f1"}, nil
}

func (d *testDispatcher) CreateJob(_ context.Context, r *pecanv1.CreateJobRequest) (*pecanv1.CreateJobResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.asked++
	d.seeds = append(d.seeds, r.GetOptions().GetSeed())
	if d.datasetLost {
		return nil, reason.New(reason.DatasetUnknown, "dataset %q is unknown", r.GetDatasetId())
	}
	d.known[r.GetClientId()] = true
	delete(d.lost, r.GetClientId())
	id, ok := d.jobs[r.GetRequestId()]
	if !ok {
		id = fmt.Sprintf("job-%d", d.asked)
		if d.forget {
			id = "another-job"
		}
		d.jobs[r.GetRequestId()] = id
	}
	return &pecanv1.CreateJobResponse{JobId: id, Created: !ok, Durable: d.durable, Plan: d.plan, Options: d.options, ClientTimeoutS: d.clientTimeout(), Workers: 1, ClusterId: d.clusterID()}, nil
}

// clientTimeout returns the client timeout. The caller holds d.mu.
func (d *testDispatcher) clientTimeout() float64 {
	if d.timeoutS == 0 {
		return 10
	}
	return d.timeoutS
}

func (d *testDispatcher) ReportWorker(_ context.Context, r *pecanv1.ReportWorkerRequest) (*pecanv1.ReportWorkerResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.reported = append(d.reported, r)
	return &pecanv1.ReportWorkerResponse{}, nil
}

func (d *testDispatcher) ClientHeartbeat(ctx context.Context, r *pecanv1.ClientHeartbeatRequest) (*pecanv1.ClientHeartbeatResponse, error) {
	if err := d.pause(ctx, func() chan struct{} { return d.delayHeartbeats }, func() { d.delayedHeartbeats++ }); err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.forget || d.lost[r.GetClientId()] {
		return nil, reason.New(reason.ClientUnknown, "client is unknown")
	}
	d.heartbeats = append(d.heartbeats, r)
	answer := &pecanv1.ClientHeartbeatResponse{ClientTimeoutS: d.clientTimeout(), Placement: d.placement}
	if r.LocalWorkers != nil {
		answer.LocalWorkers = d.wanted
	}
	return answer, nil
}

func (d *testDispatcher) ClientGoodbye(context.Context, *pecanv1.ClientGoodbyeRequest) (*pecanv1.ClientGoodbyeResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.goodbyes++
	return &pecanv1.ClientGoodbyeResponse{}, nil
}
