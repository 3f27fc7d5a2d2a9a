package dispatcher_test

import (
	"context"
	"io"
	"math"
	"net"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protowire"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/proto/reason"
	"github.com/pecan-ml/pecan/service/dispatcher"
)

func streamID(job string, epoch uint64, stream uint32) *pecanv1.StreamId {
	return &pecanv1.StreamId{JobId: job, Epoch: epoch, Stream: stream}
}

// Every invalid request gets a reason, and leaves the durable state unchanged.
func TestHostileRequestsChangeNothing(t *testing.T) {
	s := startService(t, serviceOptions{})
	dataset := s.register(&pecanv1.Plan{NumStreams: 2})
	job := s.job("c1", "named", dataset, nil)
	other := s.job("c2", "", dataset, nil)
	s.open("c1", job.JobId, 0)
	w := s.worker(workerHello("w1", 4))
	w.start()
	w.start()

	create := func(change func(*pecanv1.CreateJobRequest)) func(context.Context) error {
		return func(ctx context.Context) error {
			req := &pecanv1.CreateJobRequest{RequestId: "r", ClientId: "c9", DatasetId: dataset, Options: &pecanv1.JobOptions{}}
			change(req)
			_, err := s.client.CreateJob(ctx, req)
			return err
		}
	}
	openAs := func(client, jobID, request string, pass uint64) func(context.Context) error {
		return func(ctx context.Context) error {
			_, err := s.client.OpenEpoch(ctx, &pecanv1.OpenEpochRequest{RequestId: request, ClientId: client, JobId: jobID, Pass: pass})
			return err
		}
	}
	finish := func(client string, id *pecanv1.StreamId, lease, count uint64) func(context.Context) error {
		return func(ctx context.Context) error {
			return s.finish(ctx, client, id, lease, count)
		}
	}
	release := func(client string, id *pecanv1.StreamId, lease, next uint64) func(context.Context) error {
		return func(ctx context.Context) error {
			return s.release(ctx, client, id, lease, next)
		}
	}
	cases := map[string]struct {
		call func(context.Context) error
		want reason.Reason
	}{
		"a job name with a path":         {create(func(r *pecanv1.CreateJobRequest) { r.JobName = "../../etc" }), reason.BadName},
		"a job name with a NUL":          {create(func(r *pecanv1.CreateJobRequest) { r.JobName = "a\x00b" }), reason.BadName},
		"a job name with a hyphen first": {create(func(r *pecanv1.CreateJobRequest) { r.JobName = "-rf" }), reason.BadName},
		"a job name of 300 characters":   {create(func(r *pecanv1.CreateJobRequest) { r.JobName = strings.Repeat("a", 300) }), reason.BadName},
		"a job name that looks alike":    {create(func(r *pecanv1.CreateJobRequest) { r.JobName = "trаin" }), reason.BadName},
		"no client":                      {create(func(r *pecanv1.CreateJobRequest) { r.ClientId = "" }), reason.BadArgument},
		"a client of 10,000 characters":  {create(func(r *pecanv1.CreateJobRequest) { r.ClientId = strings.Repeat("c", 10_000) }), reason.BadArgument},
		"no request id":                  {create(func(r *pecanv1.CreateJobRequest) { r.RequestId = "" }), reason.BadArgument},
		"no dataset":                     {create(func(r *pecanv1.CreateJobRequest) { r.DatasetId = "" }), reason.BadArgument},
		"an unknown dataset":             {create(func(r *pecanv1.CreateJobRequest) { r.DatasetId = "nothing" }), reason.DatasetUnknown},
		"an unknown mode":                {create(func(r *pecanv1.CreateJobRequest) { r.Options.Mode = 77 }), reason.BadArgument},
		"an unknown sharding":            {create(func(r *pecanv1.CreateJobRequest) { r.Options.Sharding = -1 }), reason.BadArgument},
		"an unknown compression":         {create(func(r *pecanv1.CreateJobRequest) { r.Options.Compression = 9 }), reason.BadArgument},
		"an unknown order":               {create(func(r *pecanv1.CreateJobRequest) { r.Options.Order = 12 }), reason.BadArgument},
		"an unknown tolerance":           {create(func(r *pecanv1.CreateJobRequest) { r.Options.OrderTolerance = -3 }), reason.BadArgument},
		"the paper's order within bounds": {create(func(r *pecanv1.CreateJobRequest) {
			r.Options.Order, r.Options.OrderTolerance = pecanv1.Order_ORDER_PAPER, pecanv1.OrderTolerance_ORDER_TOLERANCE_EXACT
		}), reason.BadArgument},
		"elements above 2 GiB": {create(func(r *pecanv1.CreateJobRequest) { r.Options.MaxElementBytes = 1 << 40 }), reason.BadArgument},
		"negative elements":    {create(func(r *pecanv1.CreateJobRequest) { r.Options.MaxElementBytes = -1 }), reason.BadArgument},
		"mode off with sharding": {create(func(r *pecanv1.CreateJobRequest) {
			r.Options.Mode, r.Options.Sharding = pecanv1.Mode_MODE_OFF, pecanv1.Sharding_SHARDING_FILE
		}), reason.BadArgument},
		"another seed under a known name": {create(func(r *pecanv1.CreateJobRequest) {
			r.JobName, r.Options.SeedSet, r.Options.Seed = "named", true, 5
		}), reason.JobMismatch},
		"a request of 17 MiB": {create(func(r *pecanv1.CreateJobRequest) { r.ClientHost = strings.Repeat("h", 17<<20) }), reason.MessageTooLarge},

		"an epoch of a stranger":             {openAs("stranger", job.JobId, "o", 0), reason.ClientUnknown},
		"an epoch of another's job":          {openAs("c2", job.JobId, "o", 0), reason.JobUnknown},
		"a pass far ahead":                   {openAs("c1", job.JobId, "o2", math.MaxUint64), reason.BadArgument},
		"a pass that is open already":        {openAs("c1", job.JobId, "o3", 0), reason.BadArgument},
		"a finished stream of no epoch":      {finish("c1", streamID(job.JobId, math.MaxUint64, 0), 1, 1), reason.EpochUnknown},
		"a finished stream out of range":     {finish("c1", streamID(job.JobId, 0, math.MaxUint32), 1, 1), reason.StreamUnknown},
		"a finished stream of another job":   {finish("c1", streamID(other.JobId, 0, 0), 1, 1), reason.JobUnknown},
		"a finished stream under lease 0":    {finish("c1", streamID(job.JobId, 0, 0), 0, 1), reason.StaleLease},
		"a finished stream under lease 2^63": {finish("c1", streamID(job.JobId, 0, 0), 1<<63, 1), reason.StaleLease},
		"a finished stream without id":       {finish("c1", nil, 1, 1), reason.BadArgument},
		"a released stream under lease 0":    {release("c1", streamID(job.JobId, 0, 0), 0, 1), reason.StaleLease},
		"a released stream out of range":     {release("c1", streamID(job.JobId, 0, 7), 1, 1), reason.StreamUnknown},
		"closing an epoch that is not yet": {func(ctx context.Context) error {
			_, err := s.client.CloseEpoch(ctx, &pecanv1.CloseEpochRequest{ClientId: "c1", JobId: job.JobId, Epoch: 9})
			return err
		}, reason.EpochUnknown},
		"the heartbeat of a stranger": {func(ctx context.Context) error {
			_, err := s.client.ClientHeartbeat(ctx, &pecanv1.ClientHeartbeatRequest{ClientId: "stranger"})
			return err
		}, reason.ClientUnknown},
		"a heartbeat for another's job": {func(ctx context.Context) error {
			_, err := s.client.ClientHeartbeat(ctx, &pecanv1.ClientHeartbeatRequest{ClientId: "c1", JobIds: []string{other.JobId}, Passes: []*pecanv1.ClientHeartbeatRequest_Pass{
				{JobId: other.JobId, Epoch: 3, WaitedS: math.NaN(), Elements: math.MaxUint64}, {},
			}})
			return err
		}, reason.JobUnknown},
		"watching what is not open": {func(ctx context.Context) error {
			stream, err := s.client.WatchEpoch(ctx, &pecanv1.WatchEpochRequest{ClientId: "c2", JobId: other.JobId, Epoch: 0})
			if err == nil {
				_, err = stream.Recv()
			}
			return err
		}, reason.EpochUnknown},
		"an unknown dataset's description": {func(ctx context.Context) error {
			_, err := s.client.GetDataset(ctx, &pecanv1.GetDatasetRequest{DatasetId: "1000"})
			return err
		}, reason.DatasetUnknown},
		"a dataset id with a path": {func(ctx context.Context) error {
			_, err := s.client.GetDataset(ctx, &pecanv1.GetDatasetRequest{DatasetId: "../secret"})
			return err
		}, reason.BadName},
		"an unknown graph": {func(ctx context.Context) error {
			stream, err := s.client.FetchGraph(ctx, &pecanv1.FetchGraphRequest{Fingerprint: "nothing"})
			if err == nil {
				_, err = stream.Recv()
			}
			return err
		}, reason.DatasetUnknown},
	}
	before := s.d.StateHash()
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			wantReason(t, c.call(s.ctx()), c.want)
			if s.d.StateHash() != before {
				t.Fatal("the durable state changed")
			}
		})
	}
}

func TestHostileWorkersAreRefused(t *testing.T) {
	s := startService(t, serviceOptions{change: func(c *dispatcher.Config) { c.Core.WorkerAddresses = []string{"127.0.0.1:7001", "host2"} }})
	hello := func(change func(*pecanv1.WorkerHello)) *pecanv1.WorkerHello {
		h := workerHello("w", 2)
		h.Address.Tcp = "127.0.0.1:7001"
		change(h)
		return h
	}
	cases := map[string]struct {
		hello *pecanv1.WorkerHello
		want  reason.Reason
	}{
		"no hello":                        {nil, reason.BadArgument},
		"no address":                      {hello(func(h *pecanv1.WorkerHello) { h.Address = nil }), reason.BadArgument},
		"a nameless worker":               {hello(func(h *pecanv1.WorkerHello) { h.Address.WorkerId = "" }), reason.BadArgument},
		"a worker named by control codes": {hello(func(h *pecanv1.WorkerHello) { h.Address.WorkerId = "w\n\x1b[31m" }), reason.BadArgument},
		"no port":                         {hello(func(h *pecanv1.WorkerHello) { h.Address.Tcp = "host" }), reason.BadArgument},
		"port 0":                          {hello(func(h *pecanv1.WorkerHello) { h.Address.Tcp = "host:0" }), reason.BadArgument},
		"port 70000":                      {hello(func(h *pecanv1.WorkerHello) { h.Address.Tcp = "host:70000" }), reason.BadArgument},
		"every address":                   {hello(func(h *pecanv1.WorkerHello) { h.Address.Tcp = "0.0.0.0:7" }), reason.BadArgument},
		"a metadata server's address":     {hello(func(h *pecanv1.WorkerHello) { h.Address.Tcp = "169.254.169.254:80" }), reason.BadArgument},
		"a path for a socket":             {hello(func(h *pecanv1.WorkerHello) { h.Address.Unix = "/run/x" }), reason.BadArgument},
		"no slots":                        {hello(func(h *pecanv1.WorkerHello) { h.MaxStreams = 0 }), reason.BadArgument},
		"2^31 slots":                      {hello(func(h *pecanv1.WorkerHello) { h.MaxStreams = math.MaxInt32 }), reason.BadArgument},
		"another cluster":                 {hello(func(h *pecanv1.WorkerHello) { h.ClusterId = "c-0000" }), reason.ClusterMismatch},
		"an address that is not listed":   {hello(func(h *pecanv1.WorkerHello) { h.Address.Tcp = "127.0.0.1:7002" }), reason.WorkerUnknown},
		"a strange kind":                  {hello(func(h *pecanv1.WorkerHello) { h.Kind = "moon" }), reason.BadArgument},
	}
	before := s.d.StateHash()
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			_, err := s.tryWorker(c.hello)
			wantReason(t, err, c.want)
			if s.d.StateHash() != before {
				t.Fatal("the durable state changed")
			}
		})
	}
	if _, err := s.tryWorker(hello(func(h *pecanv1.WorkerHello) { h.Address.Tcp = "host2:99" })); err != nil {
		t.Fatalf("a listed host: %v", err)
	}
}

// A registered worker's false reports are counted, answered by stops, and change nothing.
func TestFalseReportsOfWorkersChangeNothing(t *testing.T) {
	s := startService(t, serviceOptions{})
	job := s.begun(1)
	w := s.worker(workerHello("w1", 1))
	start := w.start()
	before := s.d.StateHash()
	wrong := &pecanv1.StreamId{JobId: job.JobId, Epoch: 9, Stream: 4}
	w.send(&pecanv1.WorkerMessage{Kind: &pecanv1.WorkerMessage_Heartbeat{Heartbeat: &pecanv1.WorkerHeartbeat{
		CpuS: math.NaN(), ResidentBytes: -1,
		Streams: pecanv1.PackLoads([]*pecanv1.WorkerHeartbeat_StreamLoad{
			{Id: start.Id, Lease: start.Lease, Produced: 3, Acked: math.MaxUint64, Opened: true},
			{Id: wrong, Lease: 1}, {},
		}),
	}}})
	for _, id := range []string{job.JobId, "another"} {
		w.send(&pecanv1.WorkerMessage{Kind: &pecanv1.WorkerMessage_Metrics{Metrics: &pecanv1.JobMetrics{
			JobId: id, Generation: 1, Sequence: 1, Nodes: []*pecanv1.NodeMetrics{{Node: "n", SelfCpuS: math.Inf(1), Elements: 4}},
		}}})
	}
	w.send(&pecanv1.WorkerMessage{Kind: &pecanv1.WorkerMessage_Metrics{}})
	// Lists of different lengths.
	torn := pecanv1.PackLoads([]*pecanv1.WorkerHeartbeat_StreamLoad{{Id: start.Id, Lease: start.Lease, Produced: 9}})
	torn[0].Produced = nil
	w.send(&pecanv1.WorkerMessage{Kind: &pecanv1.WorkerMessage_Heartbeat{Heartbeat: &pecanv1.WorkerHeartbeat{Streams: torn}}})
	if stop := w.stopped(); stop.Id.Epoch != 9 {
		t.Fatalf("stop %v", stop)
	}
	w.stopped()
	w.ended(&pecanv1.StartStream{Id: start.Id, Lease: start.Lease + 1}, 5, 0)
	w.stopped()
	w.send(&pecanv1.WorkerMessage{Kind: &pecanv1.WorkerMessage_Failed{Failed: &pecanv1.StreamFailed{Id: wrong, Lease: 1, Error: &pecanv1.ErrorDetail{Code: 3}}}})
	w.stopped()
	w.send(&pecanv1.WorkerMessage{})
	status, err := s.client.Status(s.ctx(), &pecanv1.StatusRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if s.d.StateHash() != before {
		t.Fatal("the durable state changed")
	}
	if w := status.Workers[0]; w.CpuS != 0 || w.ResidentBytes != 0 {
		t.Fatalf("worker %v", w)
	}
	if n := status.Jobs[0].Nodes; len(n) != 1 || n[0].SelfCpuS != 0 || n[0].Elements != 4 {
		t.Fatalf("nodes %v", n)
	}
	w.send(&pecanv1.WorkerMessage{Kind: &pecanv1.WorkerMessage_Hello{Hello: workerHello("w1", 1)}})
	_, err = w.stream.Recv()
	wantReason(t, err, reason.BadArgument)
}

func TestUnknownFieldsStayOutOfTheJournal(t *testing.T) {
	s := startService(t, serviceOptions{})
	dataset := s.register(&pecanv1.Plan{NumStreams: 1})
	options := &pecanv1.JobOptions{Seed: 3, SeedSet: true}
	options.ProtoReflect().SetUnknown(protowire.AppendString(protowire.AppendTag(nil, 999, protowire.BytesType), "smuggled"))
	job := s.job("c1", "", dataset, options)
	if len(job.Options.ProtoReflect().GetUnknown()) > 0 || job.Options.Seed != 3 {
		t.Fatalf("options %v", job.Options)
	}
}

func TestJobNamesFoldCase(t *testing.T) {
	s := startService(t, serviceOptions{})
	dataset := s.register(&pecanv1.Plan{NumStreams: 1})
	first := s.job("c1", "Train.Images_1", dataset, nil)
	second := s.job("c2", "train.images_1", dataset, nil)
	if second.JobId != first.JobId || second.Created {
		t.Fatalf("two jobs: %v %v", first.JobId, second)
	}
	other := s.register(&pecanv1.Plan{NumStreams: 3})
	_, err := s.client.CreateJob(s.ctx(), &pecanv1.CreateJobRequest{RequestId: "r", ClientId: "c3", DatasetId: other, JobName: "TRAIN.images_1"})
	wantReason(t, err, reason.JobMismatch)
	for _, fingerprint := range []string{dataset, other} {
		if !strings.Contains(err.Error(), fingerprint) {
			t.Errorf("%v does not name %s", err, fingerprint)
		}
	}
}

// Peers that do not speak gRPC are disconnected, and others are served meanwhile.
func TestGarbageOnThePortAffectsNobody(t *testing.T) {
	t.Parallel()
	s := startService(t, serviceOptions{})
	garbage := map[string]string{
		"http":     "GET / HTTP/1.1\r\nHost: x\r\n\r\n",
		"tls":      "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
		"noise":    strings.Repeat("\xfe\x00\x37", 5000),
		"preface":  "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\xff\xff\xff\xff\xff\xff\xff\xff\xff",
		"nothing":  "",
		"too long": "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + strings.Repeat("\x00", 9),
	}
	for name, bytes := range garbage {
		t.Run(name, func(t *testing.T) {
			conn, err := net.Dial("tcp", s.address)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			// The other side may hang up before all is written.
			_, _ = io.WriteString(conn, bytes)
			if _, err := s.client.Status(s.ctx(), &pecanv1.StatusRequest{}); err != nil {
				t.Fatal(err)
			}
			if name == "nothing" {
				return
			}
			if err := conn.SetReadDeadline(time.Now().Add(wait)); err != nil {
				t.Fatal(err)
			}
			if _, err := io.Copy(io.Discard, conn); err != nil && strings.Contains(err.Error(), "timeout") {
				t.Fatalf("the connection stays open: %v", err)
			}
		})
	}
}

func TestIdleConnectionsDoNotBlockOtherClients(t *testing.T) {
	s := startService(t, serviceOptions{})
	for range 300 {
		conn, err := net.Dial("tcp", s.address)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
	}
	if _, err := s.client.Status(s.ctx(), &pecanv1.StatusRequest{}); err != nil {
		t.Fatal(err)
	}
}
