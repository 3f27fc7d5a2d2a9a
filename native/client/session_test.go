package client

import (
	"bytes"
	"context"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/pecan-ml/pecan/native/client/control"
	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/proto/reason"
)

func TestOptionsAreValidated(t *testing.T) {
	t.Parallel()
	err := IterOptions{MaxOutstandingBytes: -1, Protocol: "udp", Compression: 77, Timeout: -1}.Validate()
	for _, want := range []string{"max_outstanding_bytes", "udp", "compression 77", "timeout"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q is not in %v", want, err)
		}
	}
	err = Config{Target: "nowhere", Timeout: -1, Heartbeat: -1}.Validate()
	for _, want := range []string{"nowhere", "timeout", "heartbeat"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q is not in %v", want, err)
		}
	}
	if _, err := Connect(context.Background(), Config{Target: "nowhere"}); !reason.Is(err, reason.BadArgument) {
		t.Errorf("connected with a bad target: %v", err)
	}
}

func TestConnectingToAnUnusedAddressFailsInTime(t *testing.T) {
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := closed.Addr().String()
	_ = closed.Close()
	// A listener that never answers gives the same error.
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	for name, target := range map[string]string{"nobody listens": address, "nobody answers": silent.Addr().String(), "no such socket": "unix:@pecan-nobody"} {
		t.Run(name, func(t *testing.T) {
			began := time.Now()
			_, err := Connect(context.Background(), Config{Target: target, Timeout: 200 * time.Millisecond})
			took := time.Since(began)
			if !reason.Is(err, reason.Unavailable) || took > 2*time.Second || took < 150*time.Millisecond {
				t.Fatalf("after %v: %v", took, err)
			}
			for _, want := range []string{target, "no answer for 0.", "pecan-dispatcher"} {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("%q is not in %v", want, err)
				}
			}
		})
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := Connect(ctx, Config{Target: address}); !reason.Is(err, reason.Closed) {
		t.Errorf("given up: %v", err)
	}
}

func TestConnectingToAnotherServiceIsATypedError(t *testing.T) {
	t.Parallel()
	strangers := map[string]func(net.Listener) (stop func()){
		"a gRPC server of another service": func(listener net.Listener) func() {
			server := grpc.NewServer()
			go func() { _ = server.Serve(listener) }()
			return server.Stop
		},
		"a web server that does not know the page": func(listener net.Listener) func() {
			protocols := new(http.Protocols)
			protocols.SetUnencryptedHTTP2(true)
			server := &http.Server{Handler: http.NotFoundHandler(), Protocols: protocols}
			go func() { _ = server.Serve(listener) }()
			return func() { _ = server.Close() }
		},
	}
	for name, serve := range strangers {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			listener, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			defer serve(listener)()
			_, err = Connect(context.Background(), Config{Target: listener.Addr().String(), Timeout: 10 * time.Second})
			if !reason.Is(err, reason.Unavailable) || !strings.Contains(err.Error(), "no Pecan dispatcher") ||
				!strings.Contains(err.Error(), listener.Addr().String()) {
				t.Errorf("got %v", err)
			}
		})
	}
}

func TestConnectingOverAnAbstractSocket(t *testing.T) {
	d := startDispatcher(t)
	listener, err := net.Listen("unix", "@pecan-dispatcher-test")
	if err != nil {
		t.Fatal(err)
	}
	server := d.server
	go func() { _ = server.Serve(listener) }()
	d.updateOf = spread(1, startWorker(t, same(testStream{count: 3})))
	job := open(t, d, func(c *Config) { c.Target = "unix:@pecan-dispatcher-test" })
	if all, err := read(t, job.Open(IterOptions{})); err != nil || len(all) != 3 {
		t.Errorf("%d elements, %v", len(all), err)
	}
}

func TestDatasetsAreUploadedInChunks(t *testing.T) {
	d := startDispatcher(t)
	s := open(t, d).session
	ctx := context.Background()
	for _, n := range []int{0, 1, control.ChunkBytes, control.ChunkBytes + 1, 3*control.ChunkBytes + 5} {
		graph := bytes.Repeat([]byte{byte(n)}, n)
		id, fingerprint, err := s.RegisterDataset(ctx, graph, &pecanv1.DatasetSpec{}, "")
		if err != nil || id != "f1" || fingerprint != "f1" {
			t.Fatalf("%d bytes: %q %q %v", n, id, fingerprint, err)
		}
		if got := look(d, func() []byte { return d.uploads[len(d.uploads)-1] }); !bytes.Equal(got, graph) {
			t.Errorf("%d bytes arrived of %d", len(got), n)
		}
	}
	if id, _, err := s.RegisterDataset(ctx, []byte("g"), nil, "mine"); err != nil || id != "mine" {
		t.Errorf("%q, %v", id, err)
	}
	// The dispatcher refuses the header while the client still uploads the rest. The client returns that reason.
	if _, _, err := s.RegisterDataset(ctx, make([]byte, 65<<20), nil, ""); !reason.Is(err, reason.MessageTooLarge) {
		t.Errorf("too large: %v", err)
	}
	if _, err := s.GetDataset(ctx, "nothing"); !reason.Is(err, reason.DatasetUnknown) {
		t.Errorf("unknown: %v", err)
	}
	if got, err := s.GetDataset(ctx, "f1"); err != nil || got.GetFingerprint() != "f1" {
		t.Errorf("%v, %v", got, err)
	}
	if got, err := s.Status(ctx); err != nil || got.GetVersion() != "test" {
		t.Errorf("%v, %v", got, err)
	}
}

func TestCallsAreRepeatedWhileTheDispatcherIsAway(t *testing.T) {
	d := startDispatcher(t)
	s := open(t, d).session
	d.stop()
	back := make(chan struct{})
	go func() {
		defer close(back)
		for away, _ := s.link.Away(); away == 0; away, _ = s.link.Away() {
			time.Sleep(time.Millisecond)
		}
		d.listen(d.addr)
	}()
	if _, err := s.GetDataset(context.Background(), "f1"); err != nil {
		t.Error(err)
	}
	<-back
	d.stop()
	ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
	defer cancel()
	if _, err := s.CreateJob(ctx, JobSpec{DatasetID: "f1"}); !reason.Is(err, reason.Unavailable) {
		t.Errorf("got %v", err)
	}
}

func TestAClosedSessionRefuses(t *testing.T) {
	d := startDispatcher(t)
	d.updateOf = spread(1, startWorker(t, same(testStream{count: 3})))
	job := open(t, d)
	it := job.Open(IterOptions{})
	if err := job.session.Close(); err != nil {
		t.Fatal(err)
	}
	if err := job.session.Close(); err != nil {
		t.Errorf("closed twice: %v", err)
	}
	if look(d, func() int { return d.goodbyes }) != 1 {
		t.Error("no goodbye")
	}
	if _, status, err := it.NextElement(0); status != Broken || !reason.Is(err, reason.Closed) {
		t.Errorf("next: %v, %v", status, err)
	}
	if _, status, err := job.Open(IterOptions{}).NextElement(0); status != Broken || !reason.Is(err, reason.Closed) {
		t.Errorf("open: %v, %v", status, err)
	}
	if _, err := job.session.GetDataset(context.Background(), "f1"); !reason.Is(err, reason.Closed) {
		t.Errorf("ask: %v", err)
	}
}

func TestAJobReturnsTheDispatchersAnswer(t *testing.T) {
	d := startDispatcher(t, func(d *testDispatcher) { d.options.Seed = 7 })
	job := open(t, d)
	if job.ID() != "job-1" || !job.Created() || job.Durable() || job.Workers() != 1 || job.Options().GetSeed() != 7 || !proto.Equal(job.Plan(), d.plan) {
		t.Errorf("%+v", job)
	}
	again, err := job.session.CreateJob(context.Background(), JobSpec{DatasetID: "f1", Name: "x"})
	if err != nil {
		t.Fatal(err)
	}
	if again.consumer.ClientID == job.consumer.ClientID {
		t.Error("two jobs are one consumer")
	}
}

func TestEveryCallFailsAtOnceAfterAFork(t *testing.T) {
	d := startDispatcher(t)
	d.updateOf = spread(1, startWorker(t, same(testStream{count: 3})))
	job := open(t, d)
	it := job.Open(IterOptions{})
	s := job.session
	// A forked child sees a session of another process.
	s.link.Process = os.Getpid() + 1
	defer func() { s.link.Process = os.Getpid() }()
	refused := func(what string, err error) {
		t.Helper()
		if !reason.Is(err, reason.UsedAfterFork) || !strings.Contains(err.Error(), "spawn") {
			t.Errorf("%s: %v", what, err)
		}
	}
	_, _, err := it.NextElement(time.Minute)
	refused("next element", err)
	_, _, err = it.NextBlock(3, time.Minute)
	refused("next block", err)
	_, _, err = job.Open(IterOptions{}).NextElement(time.Minute)
	refused("open", err)
	_, err = s.CreateJob(context.Background(), JobSpec{})
	refused("create job", err)
	_, err = s.Status(context.Background())
	refused("status", err)
	refused("close iteration", it.Close())
	refused("close job", job.Close())
	refused("close session", s.Close())
	if waiting(it) != "" {
		t.Error("a child got the reason for which its parent waits")
	}
}
