package dispatcher_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/client-go/rest"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/dispatcher"
	"github.com/pecan-ml/pecan/service/dispatcher/core/fleet"
	"github.com/pecan-ml/pecan/service/provision"
)

// provided is a service whose provider answers as the condition wants.
func provided(t *testing.T, provider provision.Provider, limits fleet.Limits, registry *prometheus.Registry, right func(*pecanv1.ProviderStatus) bool) *pecanv1.ProviderStatus {
	t.Helper()
	s := startService(t, serviceOptions{realTime: true, provider: provider, metrics: registry, change: func(c *dispatcher.Config) { c.Core.Fleet = limits }})
	for deadline := time.Now().Add(wait); ; time.Sleep(20 * time.Millisecond) {
		status, err := s.client.Status(t.Context(), &pecanv1.StatusRequest{})
		if err != nil {
			t.Fatal(err)
		}
		if right(status.Provider) {
			return status.Provider
		}
		if time.Now().After(deadline) {
			t.Fatalf("the status still shows %v", status.Provider)
		}
	}
}

// The status says why a provider cannot be asked. The dispatcher serves meanwhile.
func TestG9AProviderThatIsAwayIsShown(t *testing.T) {
	k, err := provision.NewKubernetes(&rest.Config{Host: "http://127.0.0.1:1"}, "deployment", "pecan", "worker", provision.Options{})
	if err != nil {
		t.Fatal(err)
	}
	registry := prometheus.NewRegistry()
	p := provided(t, k, fleet.Limits{Provider: "kubernetes:deployment/worker", Min: 1, Max: 4}, registry, func(p *pecanv1.ProviderStatus) bool { return p.GetError() != "" })
	if !strings.Contains(p.Error, "deployments/worker.pecan") || p.Desired != 0 || p.Max != 4 {
		t.Errorf("the status shows %v", p)
	}
	if n, _ := sum(t, registry, "pecan_dispatcher_provider_failures_total", ""); n < 1 {
		t.Errorf("the metric counts %v failed calls", n)
	}
}

// A worker that cannot start is requested and stuck, and the status says why.
func TestG9WorkersThatCannotStartAreStuck(t *testing.T) {
	program := filepath.Join(t.TempDir(), "worker")
	if err := os.WriteFile(program, []byte("#!/bin/sh\nexit 3\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	local, err := provision.NewLocal(provision.Options{Dispatcher: "127.0.0.1:1", WorkerProgram: program})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = local.Close() })
	p := provided(t, local, fleet.Limits{Provider: "local", Min: 2, Max: 4}, prometheus.NewRegistry(), func(p *pecanv1.ProviderStatus) bool { return p.GetStuck() == 2 })
	if p.Requested != 2 || p.Desired != 2 || p.Ready != 0 || !strings.Contains(p.Why, "exit status 3") {
		t.Errorf("the status shows %v", p)
	}
}
