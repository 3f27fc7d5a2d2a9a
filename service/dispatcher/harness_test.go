package dispatcher_test

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/proto/reason"
	"github.com/pecan-ml/pecan/service/dispatcher"
	"github.com/pecan-ml/pecan/service/dispatcher/ordering"
	"github.com/pecan-ml/pecan/service/graph/split"
	"github.com/pecan-ml/pecan/service/internal/clock"
	"github.com/pecan-ml/pecan/service/provision"
	"github.com/pecan-ml/pecan/service/store"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// wait bounds every wait of these tests.
const wait = 20 * time.Second

// planGraphs reads a serialised Plan as a graph, so that a test decides how its dataset is divided.
type planGraphs struct{}

func (planGraphs) Check(graph []byte, components []*pecanv1.ComponentSpec) (string, error) {
	plan := &pecanv1.Plan{}
	if err := proto.Unmarshal(graph, plan); err != nil {
		return "", reason.New(reason.GraphParse, "no plan: %w", err)
	}
	if len(components) != 1 {
		return "", reason.New(reason.SpecMismatch, "%d components", len(components))
	}
	sum := sha256.Sum256(graph)
	return hex.EncodeToString(sum[:]), nil
}

func (g planGraphs) Plan(graph []byte, options *pecanv1.JobOptions, _ split.Env) (*pecanv1.Plan, error) {
	plan := &pecanv1.Plan{}
	if err := proto.Unmarshal(graph, plan); err != nil {
		return nil, err
	}
	if options.Mode == pecanv1.Mode_MODE_OFF {
		plan.NumStreams = 0
	}
	plan.Fingerprint, _ = g.Check(graph, []*pecanv1.ComponentSpec{{}})
	return plan, nil
}

// Named knows no order.
func (planGraphs) Named([]byte, *pecanv1.Plan, *pecanv1.JobOptions, *pecanv1.EpochOrder) ([]string, error) {
	return nil, errors.New("a plan has no steps")
}

// Order proposes nothing.
func (planGraphs) Order([]byte, *pecanv1.Plan, *pecanv1.JobOptions, ordering.Measured) (*ordering.Proposal, error) {
	return &ordering.Proposal{Why: "a plan has no steps"}, nil
}

// service is a running dispatcher and a connection to it.
type service struct {
	t       *testing.T
	d       *dispatcher.Dispatcher
	clock   *clock.Fake
	client  pecanv1.DispatcherClient
	address string
	conn    *grpc.ClientConn
	cancel  context.CancelFunc
	served  chan error
}

type serviceOptions struct {
	store   dispatcher.Store
	graphs  dispatcher.Graphs
	change  func(*dispatcher.Config)
	metrics prometheus.Registerer
	// provider starts workers; the caller closes it.
	provider provision.Provider
	// realTime runs on the system's clock.
	realTime bool
	// deps changes the dependencies.
	deps func(*dispatcher.Deps)
}

func startService(t *testing.T, o serviceOptions) *service {
	t.Helper()
	cfg := dispatcher.DefaultConfig()
	cfg.Version = "test"
	if o.change != nil {
		o.change(&cfg)
	}
	if o.store == nil {
		o.store = store.NewMemory()
	}
	if o.graphs == nil {
		o.graphs = planGraphs{}
	}
	level := slog.LevelError
	if os.Getenv("PECAN_TEST_LOG") != "" {
		level = slog.LevelDebug
	}
	s := &service{t: t, clock: clock.NewFake(), served: make(chan error, 1)}
	deps := dispatcher.Deps{
		Store: o.store, Graphs: o.graphs, Clock: s.clock, Rand: rand.Reader, Metrics: o.metrics, Provider: o.provider,
		Log: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: level})),
	}
	if o.realTime {
		deps.Clock = clock.System()
	}
	if o.deps != nil {
		o.deps(&deps)
	}
	d, err := dispatcher.New(cfg, deps)
	if err != nil {
		t.Fatal(err)
	}
	s.d = d
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s.address = listener.Addr().String()
	ctx, cancel := context.WithCancel(context.Background())
	s.cancel = cancel
	go func() { s.served <- d.Serve(ctx, listener) }()
	s.conn, err = grpc.NewClient(s.address, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDefaultCallOptions(grpc.MaxCallSendMsgSize(64<<20)))
	if err != nil {
		t.Fatal(err)
	}
	s.client = pecanv1.NewDispatcherClient(s.conn)
	t.Cleanup(s.stop)
	return s
}

// stop ends the service; a second call does nothing.
func (s *service) stop() {
	if s.cancel == nil {
		return
	}
	s.conn.Close()
	s.cancel()
	s.cancel = nil
	select {
	case err := <-s.served:
		if err != nil {
			s.t.Errorf("serve: %v", err)
		}
	case <-time.After(wait):
		s.t.Error("the service does not stop")
	}
}

func (s *service) ctx() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), wait)
	s.t.Cleanup(cancel)
	return ctx
}

var spec = &pecanv1.DatasetSpec{Components: []*pecanv1.ComponentSpec{{Dtype: 9}}, ElementSpec: []byte("int64")}

// register stores a dataset with that plan.
func (s *service) register(plan *pecanv1.Plan) string {
	s.t.Helper()
	graph, err := proto.MarshalOptions{Deterministic: true}.Marshal(plan)
	if err != nil {
		s.t.Fatal(err)
	}
	response, err := s.upload(&pecanv1.RegisterDatasetRequest_Header{Spec: spec, GraphBytes: int64(len(graph))}, graph)
	if err != nil {
		s.t.Fatal(err)
	}
	return response.DatasetId
}

func (s *service) upload(header *pecanv1.RegisterDatasetRequest_Header, chunks ...[]byte) (*pecanv1.RegisterDatasetResponse, error) {
	stream, err := s.client.RegisterDataset(s.ctx())
	if err != nil {
		return nil, err
	}
	// A refusal may come before everything is sent. CloseAndRecv returns it.
	var parts []*pecanv1.RegisterDatasetRequest
	if header != nil {
		parts = append(parts, &pecanv1.RegisterDatasetRequest{Part: &pecanv1.RegisterDatasetRequest_Header_{Header: header}})
	}
	for _, chunk := range chunks {
		parts = append(parts, &pecanv1.RegisterDatasetRequest{Part: &pecanv1.RegisterDatasetRequest_Chunk{Chunk: chunk}})
	}
	for _, part := range parts {
		if stream.Send(part) != nil {
			break
		}
	}
	return stream.CloseAndRecv()
}

// job creates a job for a client, or joins it.
func (s *service) job(client, name, dataset string, options *pecanv1.JobOptions) *pecanv1.CreateJobResponse {
	s.t.Helper()
	response, err := s.client.CreateJob(s.ctx(), &pecanv1.CreateJobRequest{
		RequestId: "create", ClientId: client, DatasetId: dataset, JobName: name, Options: options, ClientHost: "host", ClientPid: 7,
	})
	if err != nil {
		s.t.Fatal(err)
	}
	return response
}

func (s *service) open(client, job string, pass uint64) *pecanv1.OpenEpochResponse {
	s.t.Helper()
	response, err := s.client.OpenEpoch(s.ctx(), &pecanv1.OpenEpochRequest{
		RequestId: fmt.Sprintf("open-%d", pass), ClientId: client, JobId: job, Pass: pass,
	})
	if err != nil {
		s.t.Fatal(err)
	}
	return response
}

// begun creates a private job of c1 over a dataset with this many streams, and opens its first epoch.
func (s *service) begun(streams int32) *pecanv1.CreateJobResponse {
	s.t.Helper()
	job := s.job("c1", "", s.register(&pecanv1.Plan{NumStreams: streams}), nil)
	s.open("c1", job.JobId, 0)
	return job
}

// finish reports that a client has a whole stream.
func (s *service) finish(ctx context.Context, client string, id *pecanv1.StreamId, lease, count uint64) error {
	response, err := s.client.FinishStreams(ctx, &pecanv1.FinishStreamsRequest{
		ClientId: client, JobId: id.GetJobId(), Epoch: id.GetEpoch(), Streams: []*pecanv1.FinishedStream{{Stream: id.GetStream(), Lease: lease, Count: count, Assignment: 1}},
	})
	return refusal(response.GetRefused(), err)
}

// release reports that a client releases a stream.
func (s *service) release(ctx context.Context, client string, id *pecanv1.StreamId, lease, next uint64) error {
	response, err := s.client.ReleaseStreams(ctx, &pecanv1.ReleaseStreamsRequest{
		ClientId: client, JobId: id.GetJobId(), Epoch: id.GetEpoch(), Streams: []*pecanv1.ReleasedStream{{Stream: id.GetStream(), Lease: lease, NextIndex: next, Assignment: 1}},
	})
	return refusal(response.GetRefused(), err)
}

// refusal returns the error of a call with one stream.
func refusal(refused []*pecanv1.RefusedStream, err error) error {
	if err == nil && len(refused) > 0 {
		return reason.FromDetail(refused[0].GetError())
	}
	return err
}

// watch collects the updates of a pass.
type watch struct {
	s      *service
	stream grpc.ServerStreamingClient[pecanv1.EpochUpdate]
	// streams are those that were listed, as they were last. workers are those that were named.
	streams map[uint32]*pecanv1.ConsumerStream
	workers []*pecanv1.WorkerAddress
}

// whole returns an update with all streams that were listed so far, ascending.
func (w *watch) whole(update *pecanv1.EpochUpdate) *pecanv1.EpochUpdate {
	w.workers = append(w.workers, update.Workers...)
	for _, stream := range update.Streams {
		w.streams[stream.Stream] = stream
	}
	all := proto.CloneOf(update)
	all.Streams = nil
	for _, number := range slices.Sorted(maps.Keys(w.streams)) {
		all.Streams = append(all.Streams, w.streams[number])
	}
	return all
}

// workerOf returns the worker of a stream; nil without one.
func (w *watch) workerOf(stream *pecanv1.ConsumerStream) *pecanv1.WorkerAddress {
	if stream.WorkerNumber == 0 {
		return nil
	}
	return w.workers[stream.WorkerNumber-1]
}

func (s *service) watch(client, job string, epoch uint64) *watch {
	s.t.Helper()
	stream, err := s.client.WatchEpoch(s.ctx(), &pecanv1.WatchEpochRequest{ClientId: client, JobId: job, Epoch: epoch})
	if err != nil {
		s.t.Fatal(err)
	}
	return &watch{s: s, stream: stream, streams: map[uint32]*pecanv1.ConsumerStream{}}
}

// until returns the first matching update.
func (w *watch) until(what string, wanted func(*pecanv1.EpochUpdate) bool) *pecanv1.EpochUpdate {
	w.s.t.Helper()
	var last *pecanv1.EpochUpdate
	for {
		update, err := w.stream.Recv()
		if err != nil {
			w.s.t.Fatalf("waiting for an update %s: %v; the last one was %v", what, err, last)
		}
		if last != nil && update.Version <= last.Version {
			w.s.t.Fatalf("version %d after %d", update.Version, last.Version)
		}
		if last = w.whole(update); wanted(last) {
			return last
		}
	}
}

// wantReason checks code and reason code of a refusal.
func wantReason(t *testing.T, err error, want reason.Reason) {
	t.Helper()
	if err == nil {
		t.Fatalf("accepted, want %s", want)
	}
	if got := reason.From(err).Reason; got != want {
		t.Fatalf("reason %s (%v), want %s", got, err, want)
	}
	if got := status.Code(err); got != reason.Code(want) || got == codes.Unknown {
		t.Fatalf("code %v for reason %s", got, want)
	}
}

func ready(update *pecanv1.EpochUpdate) bool {
	for _, stream := range update.Streams {
		if stream.WorkerNumber == 0 {
			return false
		}
	}
	return len(update.Streams) > 0
}
