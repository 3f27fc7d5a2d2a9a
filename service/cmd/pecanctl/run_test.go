package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fixed answers with a status that has one of everything.
type fixed struct {
	pecanv1.UnimplementedDispatcherServer
}

func (fixed) Status(context.Context, *pecanv1.StatusRequest) (*pecanv1.StatusResponse, error) {
	return &pecanv1.StatusResponse{
		ClusterId: "c-1", Version: "0.1.0", WorkDir: "/var/lib/pecan", UptimeS: 75, Clients: 1,
		Workers: []*pecanv1.WorkerStatus{{
			Address: &pecanv1.WorkerAddress{WorkerId: "w-1", Tcp: "10.0.0.7:4000"}, State: "connected", MaxStreams: 4, Cores: 2,
			Streams: []*pecanv1.HeldStream{{Lease: 1}, {Lease: 2, Ended: true}}, TensorflowVersion: "2.21.0", Kind: "remote",
			CpuS: 12.5, ResidentBytes: 3 << 29, LastHeartbeatS: 0.3,
		}},
		Jobs: []*pecanv1.JobStatus{{
			JobId: "j-1", Name: "train", DatasetId: "d-1", Options: &pecanv1.JobOptions{Mode: pecanv1.Mode_MODE_EXACTLY_ONCE, RequestedMode: pecanv1.Mode_MODE_DETERMINISTIC, Sharding: pecanv1.Sharding_SHARDING_DYNAMIC, Seed: 42, Order: pecanv1.Order_ORDER_AUTO, OrderTolerance: pecanv1.OrderTolerance_ORDER_TOLERANCE_EXACT},
			Plan: &pecanv1.Plan{NumStreams: 4, Reasons: []string{"cut at the source"}, Determinism: pecanv1.DeterminismClass_DETERMINISM_CLASS_A, Hash: "0123456789abcdef"}, Clients: []string{"c-1"},
			Epochs: []*pecanv1.EpochStatus{{Epoch: 3, State: "open", Ordered: true, StreamsDone: 1, StreamsRunning: 2, StreamsWaiting: 1, Elements: 4711, Waiting: "all workers are busy", StreamsTruncated: 2, Lost: 17,
				Passes: []*pecanv1.PassStatus{{ClientId: "c-9", Starved: true, Elements: 4000, Bytes: 3 << 20, WaitedS: 61}}}},
			Order:    &pecanv1.OrderStatus{State: "proposed", Why: "a worker tries it"},
			Recovery: &pecanv1.Recovery{Recomputed: 41, Started: 3, Restored: 2},
			Nodes:    []*pecanv1.NodeMetrics{{Node: "map_3", Op: "MapDataset", Elements: 815, SelfCpuS: 75, BytesIn: 4096}},
		}},
		Provider: &pecanv1.ProviderStatus{Name: "kubernetes:deployment/w", Wanted: 7, Desired: 6, Min: 2, Max: 11, Requested: 1, Pending: 3, Ready: 4, Leaving: []string{"10.0.0.9"}, Stuck: 3, Why: "no node has room"},
		Datasets: []*pecanv1.DatasetStatus{{DatasetId: "d-1", Fingerprint: "f-1", GraphBytes: 2048}},
	}, nil
}

func (fixed) Explain(_ context.Context, r *pecanv1.ExplainRequest) (*pecanv1.ExplainResponse, error) {
	if r.Job != "train" {
		return nil, status.Error(codes.NotFound, fmt.Sprintf("there is no job %q", r.Job))
	}
	return &pecanv1.ExplainResponse{JobId: "j-1", Order: pecanv1.Order_ORDER_OFF, State: "off"}, nil
}

func serve(t *testing.T) string {
	t.Helper()
	address, _ := serveUntil(t)
	return address
}

// serveUntil serves until stop is called, or the test ends.
func serveUntil(t *testing.T) (address string, stop func()) {
	t.Helper()
	return serveThe(t, fixed{})
}

func serveThe(t *testing.T, dispatcher pecanv1.DispatcherServer) (address string, stop func()) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	pecanv1.RegisterDispatcherServer(server, dispatcher)
	done := make(chan error, 1)
	go func() { done <- server.Serve(listener) }()
	stop = sync.OnceFunc(func() {
		server.Stop()
		<-done
	})
	t.Cleanup(stop)
	return listener.Addr().String(), stop
}

func TestEverySubcommandShowsItsTable(t *testing.T) {
	address := serve(t)
	for view, wanted := range map[string][]string{
		"status": {"c-1", "/var/lib/pecan", "1m15s", "w-1", "train", "exactly_once", "4711", "all workers are busy", "kubernetes:deployment/w  7       6        2    11   1          3        4      1        3", "why: no node has room"},
		"jobs": {"j-1", "train", "dynamic", "open, ordered", "cut at the source", "mode exactly_once, class A, S=4, plan 0123456789ab, seed 42, order auto (exact), dispatcher with a work directory", "mode deterministic was requested", "job train, order: proposed: a worker tries it", "2 stream(s) were truncated when their workers died; at least 17 elements",
			"trainer c-9 read 4000 elements (3.0 MiB), waited 1m1s and is waiting now", "3 times at an index and 2 times from a checkpoint; 41 elements were recomputed"},
		"workers":  {"w-1", "10.0.0.7:4000", "1/4 (+1 computed)", "1.5 GiB", "2.21.0"},
		"datasets": {"d-1", "2.0 KiB", "f-1"},
		"nodes":    {"train", "map_3", "MapDataset", "815", "1m15s", "4.0 KiB"},
	} {
		t.Run(view, func(t *testing.T) {
			var out bytes.Buffer
			if err := run(t.Context(), &options{dispatcher: "pecan://" + address, timeout: 10 * time.Second}, []string{view}, &out); err != nil {
				t.Fatal(err)
			}
			for _, want := range wanted {
				if !strings.Contains(out.String(), want) {
					t.Errorf("lacks %q:\n%s", want, out.String())
				}
			}
			out.Reset()
			if err := run(t.Context(), &options{dispatcher: address, timeout: 10 * time.Second, json: true}, []string{view}, &out); err != nil {
				t.Fatal(err)
			}
			if !json.Valid(out.Bytes()) {
				t.Errorf("no JSON: %s", out.String())
			}
		})
	}
}

func TestInvalidArgumentsAreExplained(t *testing.T) {
	for name, c := range map[string]struct {
		args    []string
		address string
		want    string
	}{
		"no command":         {nil, "127.0.0.1:1", "want one command of status"},
		"an unknown command": {[]string{"stats"}, "127.0.0.1:1", `unknown command "stats"`},
		"no port":            {[]string{"status"}, "localhost", `--dispatcher "localhost": the port is missing`},
		"a foreign scheme":   {[]string{"status"}, "http://h:1", "http:// is not a supported scheme"},
		"nothing":            {[]string{"status"}, "", "--dispatcher is missing"},
		"nobody there":       {[]string{"status"}, "127.0.0.1:1", "is it running"},
	} {
		t.Run(name, func(t *testing.T) {
			err := run(t.Context(), &options{dispatcher: c.address, timeout: time.Second}, c.args, &bytes.Buffer{})
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Fatalf("got %v, want %q", err, c.want)
			}
		})
	}
}

// A worker says which version of TensorFlow it has, and a trainer's job fails with a text of its own.
func TestTextsOfPeersDoNotReachTheTerminalAsCommands(t *testing.T) {
	const evil = "\x1b]0;title\a\x1b[2J\u009b31m"
	shown := &pecanv1.StatusResponse{
		ClusterId: evil, Version: evil, WorkDir: evil, Provider: &pecanv1.ProviderStatus{Name: evil, Why: evil, Error: evil},
		Workers:  []*pecanv1.WorkerStatus{{Address: &pecanv1.WorkerAddress{WorkerId: evil, Tcp: evil}, State: evil, Kind: evil, TensorflowVersion: evil}},
		Jobs:     []*pecanv1.JobStatus{{JobId: evil, Name: evil, Epochs: []*pecanv1.EpochStatus{{State: "failed: " + evil, Waiting: evil}}, Nodes: []*pecanv1.NodeMetrics{{Node: evil, Op: evil}}, Plan: &pecanv1.Plan{Reasons: []string{evil}}}},
		Tenants:  []*pecanv1.TenantStatus{{Name: evil}, {Name: evil}},
		Datasets: []*pecanv1.DatasetStatus{{DatasetId: evil, Fingerprint: evil}},
	}
	for name, show := range views() {
		var out bytes.Buffer
		show(&out, shown)
		if text := out.String(); strings.ContainsAny(text, "\x1b\a\u009b") || !strings.Contains(text, "[2J") {
			t.Errorf("%s prints %q", name, text)
		}
	}
}
