package provision_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/provision"
)

// wait bounds everything that a test waits for.
const wait = time.Minute

// build makes one of the programs.
func build(t *testing.T, name string) string {
	t.Helper()
	program := filepath.Join(t.TempDir(), name)
	if out, err := exec.Command("go", "build", "-o", program, "../cmd/"+name).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return program
}

// dispatcher starts a dispatcher and returns its address and its client.
func dispatcher(t *testing.T) (string, pecanv1.DispatcherClient) {
	t.Helper()
	cmd := exec.Command(build(t, "pecan-dispatcher"), "--listen", "127.0.0.1:0")
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	address := strings.TrimSpace(strings.TrimPrefix(line, "listening on "))
	connection, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		connection.Close()
		if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
			t.Error(err)
		}
		_, _ = io.Copy(io.Discard, stdout)
		if err := cmd.Wait(); err != nil {
			t.Error(err)
		}
	})
	return address, pecanv1.NewDispatcherClient(connection)
}

// until repeats a call until its state is right.
func until(t *testing.T, call func() (provision.State, error), right func(provision.State) bool) provision.State {
	t.Helper()
	for deadline := time.Now().Add(wait); ; time.Sleep(50 * time.Millisecond) {
		s, err := call()
		if err != nil {
			t.Fatal(err)
		}
		if right(s) {
			return s
		}
		if time.Now().After(deadline) {
			t.Fatalf("still %v", s)
		}
	}
}

// Real workers start and register, the named one leaves, and the others stay.
func TestLocalWorkersComeAndGo(t *testing.T) {
	if testing.Short() {
		t.Skip("workers start TensorFlow")
	}
	address, client := dispatcher(t)
	program := build(t, "pecan-worker")
	p, err := provision.Open("local", provision.Options{Dispatcher: address, WorkerProgram: program, WorkerArgs: []string{"--threads", "1"}, MostLocal: 3})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	desired, leaving := 4, []provision.Address(nil)
	reconcile := func() (provision.State, error) { return p.Reconcile(context.Background(), desired, leaving) }

	first, err := reconcile()
	if err != nil || first.Pending != 3 || first.Ready != 0 || first.Requested != 1 || first.Stuck != 1 {
		t.Fatalf("after the first call, of 3 possible workers: %v %v", first, err)
	}
	until(t, reconcile, func(s provision.State) bool { return s.Ready == 3 && s.Expected() == 3 })
	registered := func() map[string]int64 {
		status, err := client.Status(t.Context(), &pecanv1.StatusRequest{})
		if err != nil {
			t.Fatal(err)
		}
		addresses := map[string]int64{}
		for _, w := range status.Workers {
			addresses[w.Address.Tcp]++
		}
		return addresses
	}
	workers := registered()
	if len(workers) != 3 {
		t.Fatalf("registered: %v", workers)
	}
	for address := range workers {
		leaving = append(leaving, provision.Address(address))
		break
	}
	desired = 2
	until(t, reconcile, func(s provision.State) bool { return s.Ready == 2 && len(s.Leaving) == 0 })
	left := registered()
	if len(left) != 2 || left[string(leaving[0])] != 0 {
		t.Errorf("%v should have left; registered: %v", leaving, left)
	}
	if s, err := p.Observe(t.Context()); err != nil || s.Ready != 2 || s.Desired != 2 {
		t.Errorf("%v %v", s, err)
	}
	// Close waits for the workers, whose departure the dispatcher knows.
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	if left := registered(); len(left) != 0 {
		t.Errorf("after Close: %v", left)
	}
}

// A worker that cannot start is not started again and again, and is not counted on.
func TestLocalWorkersThatEndAtOnceAreStuck(t *testing.T) {
	script := filepath.Join(t.TempDir(), "worker")
	starts := filepath.Join(t.TempDir(), "starts")
	if err := os.WriteFile(script, fmt.Appendf(nil, "#!/bin/sh\necho x >> %s\nexit 3\n", starts), 0o755); err != nil {
		t.Fatal(err)
	}
	p, err := provision.NewLocal(provision.Options{Dispatcher: "127.0.0.1:1", WorkerProgram: script})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	reconcile := func() (provision.State, error) { return p.Reconcile(context.Background(), 2, nil) }
	s := until(t, reconcile, func(s provision.State) bool { return s.Stuck == 2 })
	if s.Expected() != 0 || !strings.Contains(s.Why, "exit status 3") {
		t.Errorf("%v", s)
	}
	for range 20 {
		if _, err := reconcile(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(5 * time.Millisecond)
	}
	if text, err := os.ReadFile(starts); err != nil || len(strings.Fields(string(text))) > 4 {
		t.Errorf("it was started %d times", len(strings.Fields(string(text))))
	}
}
