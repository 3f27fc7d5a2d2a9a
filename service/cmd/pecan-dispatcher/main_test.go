package main_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
)

// wait bounds everything a process is waited for.
const wait = 30 * time.Second

var program string

// TestMain builds the program as it is shipped: static, without cgo.
func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "pecan-dispatcher")
	if err != nil {
		panic(err)
	}
	program = filepath.Join(dir, "pecan-dispatcher")
	build := exec.Command("go", "build", "-o", program, ".")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		panic(string(out))
	}
	code := m.Run()
	os.RemoveAll(dir)
	os.Exit(code)
}

type process struct {
	t       *testing.T
	cmd     *exec.Cmd
	stdin   io.WriteCloser
	stderr  bytes.Buffer
	address string
	done    chan error
}

// launch starts the program and waits for its listening line.
func launch(t *testing.T, args ...string) *process {
	t.Helper()
	p := &process{t: t, cmd: exec.Command(program, args...), done: make(chan error, 1)}
	p.cmd.Stderr = &p.stderr
	stdout, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if p.stdin, err = p.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := make(chan string, 1)
	go func() {
		line, _ := bufio.NewReader(stdout).ReadString('\n')
		lines <- line
		rest, _ := io.ReadAll(stdout)
		if len(rest) > 0 {
			p.done <- errors.New("more on standard output: " + string(rest))
			return
		}
		p.done <- p.cmd.Wait()
	}()
	select {
	case line := <-lines:
		address, ok := strings.CutPrefix(line, "listening on ")
		if !ok {
			t.Fatalf("first line %q; %s", line, p.stderr.String())
		}
		p.address = strings.TrimSpace(address)
	case <-time.After(wait):
		t.Fatal("no listening line")
	}
	t.Cleanup(func() { p.cmd.Process.Kill() })
	return p
}

// ended waits for the end and returns the exit code.
func (p *process) ended() int {
	p.t.Helper()
	select {
	case err := <-p.done:
		var exit *exec.ExitError
		if err != nil && !errors.As(err, &exit) {
			p.t.Fatal(err)
		}
		return p.cmd.ProcessState.ExitCode()
	case <-time.After(wait):
		p.t.Fatal("still running")
		return 0
	}
}

func (p *process) client() (pecanv1.DispatcherClient, context.Context) {
	p.t.Helper()
	target := p.address
	if name, ok := strings.CutPrefix(target, "unix:@"); ok {
		target = "unix-abstract:" + name
	}
	conn, err := grpc.NewClient(target, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		p.t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), wait)
	p.t.Cleanup(func() { cancel(); conn.Close() })
	return pecanv1.NewDispatcherClient(conn), ctx
}

// fails runs the program to its end and checks that it failed with one line.
func fails(t *testing.T, want string, args ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), wait)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, args...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 1 {
		t.Fatalf("%v: %v, want exit code 1", args, err)
	}
	lines := strings.Split(strings.TrimSpace(stderr.String()), "\n")
	last := lines[len(lines)-1]
	if stdout.Len() > 0 || !strings.HasPrefix(last, "pecan-dispatcher: ") || !strings.Contains(last, want) {
		t.Fatalf("%v: stdout %q, last line %q, want %q", args, stdout.String(), last, want)
	}
}

func TestDispatcherServesAndStopsCleanly(t *testing.T) {
	for name, stop := range map[string]syscall.Signal{"SIGTERM": syscall.SIGTERM, "SIGINT": syscall.SIGINT, "SIGHUP": syscall.SIGHUP} {
		t.Run(name, func(t *testing.T) {
			if signal.Ignored(stop) {
				t.Skip("the tests run under nohup, and so would the dispatcher")
			}
			p := launch(t, "--listen", "127.0.0.1:0")
			api, ctx := p.client()
			status, err := api.Status(ctx, &pecanv1.StatusRequest{})
			if err != nil || status.WorkDir != "" || status.Version == "" {
				t.Fatalf("%v %v", status, err)
			}
			// A session that is open does not hold the stop up.
			session, err := api.WorkerSession(ctx)
			if err != nil {
				t.Fatal(err)
			}
			if err := session.Send(&pecanv1.WorkerMessage{}); err != nil {
				t.Fatal(err)
			}
			if err := p.cmd.Process.Signal(stop); err != nil {
				t.Fatal(err)
			}
			if code := p.ended(); code != 0 {
				t.Fatalf("exit code %d: %s", code, p.stderr.String())
			}
			if !strings.Contains(p.stderr.String(), "memory only") {
				t.Fatalf("it does not say that it keeps nothing: %s", p.stderr.String())
			}
		})
	}
}

// The dispatcher also serves without a directory for what was learned from jobs.
func TestDispatcherServesWithoutAUsableLearnedDir(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	p := launch(t, "--listen", "127.0.0.1:0", "--learned-dir", filepath.Join(file, "learned"))
	api, ctx := p.client()
	if _, err := api.Status(ctx, &pecanv1.StatusRequest{}); err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if code := p.ended(); code != 0 || !strings.Contains(p.stderr.String(), "what was learned from jobs is not kept (--learned-dir)") {
		t.Errorf("exit code %d: %s", code, p.stderr.String())
	}
}

func TestDispatcherListensOnUnixSockets(t *testing.T) {
	path := filepath.Join(t.TempDir(), "d.sock")
	for _, address := range []string{"unix:" + path, "unix:@pecan-dispatcher-test"} {
		p := launch(t, "--listen", address)
		if p.address != address {
			t.Fatalf("listening on %q", p.address)
		}
		api, ctx := p.client()
		if _, err := api.Status(ctx, &pecanv1.StatusRequest{}); err != nil {
			t.Fatal(err)
		}
	}
}

func TestDispatcherRefusesInvalidFlags(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "work")
	p := launch(t, "--listen", "127.0.0.1:0", "--work-dir", dir)
	cases := map[string]struct {
		args []string
		want string
	}{
		"on a port in use":          {[]string{"--listen", p.address}, p.address + ": the port is in use"},
		"in a missing directory":    {[]string{"--work-dir", filepath.Join(dir, "no", "such")}, "does not exist"},
		"on no address":             {[]string{"--listen", "nowhere"}, `--listen "nowhere": the port is missing: want HOST:PORT`},
		"on a URL":                  {[]string{"--listen", "http://h:1"}, `--listen "http://h:1": http:// is not a supported scheme`},
		"on port 70000":             {[]string{"--listen", "127.0.0.1:70000"}, "65535"},
		"on nothing":                {[]string{"--listen", ""}, "--listen"},
		"with an unknown flag":      {[]string{"--port", "5"}, "unknown flag: --port"},
		"with arguments":            {[]string{"serve"}, "unexpected arguments"},
		"with an empty directory":   {[]string{"--work-dir", ""}, "--work-dir is empty"},
		"with a timeout of nothing": {[]string{"--client-timeout", "0s"}, "--client-timeout 0s: must be at least 100ms"},
		"with a client of 1 ns":     {[]string{"--client-timeout", "1ns"}, "--client-timeout 1ns: must be at least 100ms"},
		"with a death of 1 ns":      {[]string{"--worker-dead-after", "1ns"}, "--worker-dead-after 1ns: must be at least 100ms"},
		"with an upload of 1 ns":    {[]string{"--upload-idle-timeout", "1ns"}, "--upload-idle-timeout 1ns: must be at least 100ms"},
		"with no jobs":              {[]string{"--max-jobs", "0"}, "--max-jobs 0"},
		"with no uploads' time":     {[]string{"--upload-idle-timeout", "0s"}, "--upload-idle-timeout"},
		"with a heartbeat of 1 ns":  {[]string{"--heartbeat", "1ns"}, "--heartbeat 1ns: must be at least 1ms"},
		"with a negative timeout":   {[]string{"--job-timeout", "-1s"}, "--job-timeout -1s: must be 0 or more"},
		"with a grace near 2^63":    {[]string{"--worker-return-grace", "9223372036854775807ns"}, "--worker-return-grace"},
		"with a timeout near 2^63":  {[]string{"--job-timeout", "2562047h"}, "--job-timeout 2562047h0m0s: must be at most"},
		"with a death near 2^63":    {[]string{"--worker-dead-after", "2562047h"}, "--worker-dead-after"},
		"with a silence near 2^63":  {[]string{"--client-timeout", "2562047h"}, "--client-timeout"},
		"with a dataset near 2^63":  {[]string{"--dataset-timeout", "2562047h"}, "--dataset-timeout"},
		"with a timeout above 2^63": {[]string{"--job-timeout", "9223372036854775807ms"}, "--job-timeout"},
		"with a time that is none":  {[]string{"--job-timeout", "nan"}, "--job-timeout"},
		"with graphs of 2^63":       {[]string{"--max-graph-bytes", "9223372036854775807"}, "--max-graph-bytes"},
		"with uploads of 2^63":      {[]string{"--max-upload-bytes", "9223372036854775807"}, "--max-upload-bytes"},
		"with graphs above 2^63":    {[]string{"--max-graph-bytes", "9223372036854775808"}, "--max-graph-bytes"},
		"with a bad level":          {[]string{"--log-level", "loud"}, "want debug, info, warn or error"},
		"with times out of order":   {[]string{"--worker-suspect-after", "30s", "--worker-dead-after", "2s"}, "each must be at least the one before"},
		"with a bad worker list":    {[]string{"--worker-addresses", "a:1,a:1,b:0"}, "listed twice"},
		"with a worker's URL":       {[]string{"--worker-addresses", "http://a:1"}, `--worker-addresses "http://a:1"`},
		"with no room for graphs":   {[]string{"--max-graph-bytes", "-1"}, "--max-graph-bytes -1: want 1 to"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) { fails(t, c.want, c.args...) })
	}
}

func TestDispatcherRefusesAWorkDirWithoutItsLog(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "work")
	p := launch(t, "--listen", "127.0.0.1:0", "--work-dir", dir)
	if err := p.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	p.ended()
	logs, err := filepath.Glob(filepath.Join(dir, "*.log"))
	if err != nil || len(logs) != 1 {
		t.Fatal(logs, err)
	}
	if err := os.Remove(logs[0]); err != nil {
		t.Fatal(err)
	}
	fails(t, "STORE_CORRUPT: open store "+dir, "--work-dir", dir)
}

func TestAShortDeadAfterShortensTheOtherTimes(t *testing.T) {
	p := launch(t, "--listen", "127.0.0.1:0", "--worker-dead-after", "300ms")
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if code := p.ended(); code != 0 {
		t.Fatalf("exit code %d: %s", code, p.stderr.String())
	}
}

func TestDispatcherEndsWithItsParent(t *testing.T) {
	p := launch(t, "--listen", "127.0.0.1:0", "--exit-with-parent")
	p.stdin.Close()
	if code := p.ended(); code != 0 {
		t.Fatalf("exit code %d: %s", code, p.stderr.String())
	}
}

func TestHelpShowsUsageAndExamples(t *testing.T) {
	out, err := exec.Command(program, "--help").Output()
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"Usage: pecan-dispatcher", "--listen", "--work-dir", "--worker-addresses", "--max-graph-bytes", "Examples:", "pecan-worker --dispatcher"} {
		if !strings.Contains(string(out), want) {
			t.Errorf("--help lacks %q", want)
		}
	}
	if out, err := exec.Command(program, "--version").Output(); err != nil || !strings.HasPrefix(string(out), "pecan-dispatcher 0.") {
		t.Fatalf("--version: %q %v", out, err)
	}
}

// A dispatcher that is killed at once after an answer has what it answered.
func TestAKilledDispatcherLosesNoState(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "work")
	graph, err := os.ReadFile(filepath.Join("..", "..", "dispatcher", "testdata", "range.graph"))
	if err != nil {
		t.Fatal(err)
	}
	var datasetID, jobID, cluster string
	for round := range 4 {
		p := launch(t, "--listen", "127.0.0.1:0", "--work-dir", dir)
		api, ctx := p.client()
		if round == 0 {
			datasetID = register(t, api, ctx, graph)
		}
		job, err := api.CreateJob(ctx, &pecanv1.CreateJobRequest{RequestId: "r", ClientId: "c", DatasetId: datasetID, JobName: "train"})
		if err != nil {
			t.Fatal(err)
		}
		if round > 0 && (job.JobId != jobID || job.Created) {
			t.Fatalf("round %d: job %s, was %s", round, job.JobId, jobID)
		}
		jobID = job.JobId
		epoch, err := api.OpenEpoch(ctx, &pecanv1.OpenEpochRequest{RequestId: "o" + string(rune('0'+round)), ClientId: "c", JobId: jobID, Pass: uint64(round)})
		if err != nil || epoch.Epoch != uint64(round) {
			t.Fatalf("round %d: %v %v", round, epoch, err)
		}
		status, err := api.Status(ctx, &pecanv1.StatusRequest{})
		if err != nil || cluster != "" && status.ClusterId != cluster || status.WorkDir != dir {
			t.Fatalf("round %d: %v %v", round, status, err)
		}
		cluster = status.ClusterId
		if err := p.cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		p.ended()
	}
}

func register(t *testing.T, api pecanv1.DispatcherClient, ctx context.Context, graph []byte) string {
	t.Helper()
	stream, err := api.RegisterDataset(ctx)
	if err != nil {
		t.Fatal(err)
	}
	spec := &pecanv1.DatasetSpec{Components: []*pecanv1.ComponentSpec{{Dtype: 9}}}
	for _, part := range []*pecanv1.RegisterDatasetRequest{
		{Part: &pecanv1.RegisterDatasetRequest_Header_{Header: &pecanv1.RegisterDatasetRequest_Header{Spec: spec, GraphBytes: int64(len(graph))}}},
		{Part: &pecanv1.RegisterDatasetRequest_Chunk{Chunk: graph}},
	} {
		if err := stream.Send(part); err != nil {
			t.Fatal(err)
		}
	}
	response, err := stream.CloseAndRecv()
	if err != nil {
		t.Fatal(err)
	}
	return response.DatasetId
}
