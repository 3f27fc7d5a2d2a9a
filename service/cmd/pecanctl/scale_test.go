package main

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/provision"
)

func TestScaleRefusesWrongArguments(t *testing.T) {
	for _, c := range []struct {
		args     []string
		provider string
		want     string
	}{
		{nil, "kubernetes:deployment/w", `wants a number of workers, got ""`},
		{[]string{"many"}, "kubernetes:deployment/w", `got "many"`},
		{[]string{"-1"}, "kubernetes:deployment/w", `got "-1"`},
		{[]string{"3", "4"}, "kubernetes:deployment/w", `got "3 4"`},
		{[]string{"3"}, "", "--provider is missing"},
		{[]string{"3"}, "local", "pecanctl cannot scale it"},
		{[]string{"3"}, "swarm", `is "swarm"`},
		{[]string{"3"}, "kubernetes:deployment/w.ns", "invalid configuration"},
	} {
		t.Setenv("KUBECONFIG", "/nowhere/kubeconfig")
		t.Setenv("HOME", t.TempDir())
		err := run(t.Context(), &options{provider: c.provider}, append([]string{"scale"}, c.args...), &bytes.Buffer{})
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q with %q: %v, want %s", c.args, c.provider, err, c.want)
		}
	}
}

// A dispatcher that asks for workers itself would set the number again.
func TestScaleLeavesTheNumberToADispatcherThatDecidesIt(t *testing.T) {
	o := &options{dispatcher: serve(t), timeout: 10 * time.Second, provider: "kubernetes:deployment/w"}
	err := run(t.Context(), o, []string{"scale", "3"}, &bytes.Buffer{})
	if err == nil || !strings.Contains(err.Error(), "asks kubernetes:deployment/w for workers itself, 2 to 11 of them") {
		t.Error(err)
	}
}

// The workers with the fewest streams leave, and those that leave already are not chosen again.
func TestScaleChoosesTheLeastBusyWorkers(t *testing.T) {
	address := serve(t)
	o := &options{dispatcher: address, timeout: 10 * time.Second}
	state := provision.State{Ready: 3, Leaving: []provision.Address{"10.0.0.1"}, Removable: []provision.Address{"10.0.0.7", "10.0.0.8", "10.0.0.9"}}
	for desired, want := range map[int]string{
		3: "[10.0.0.1]",
		2: "[10.0.0.1 10.0.0.8]",
		1: "[10.0.0.1 10.0.0.8 10.0.0.9]",
		0: "[10.0.0.1 10.0.0.8 10.0.0.9 10.0.0.7]",
	} {
		got, err := chooseLeaving(t.Context(), o, state, desired)
		if err != nil || fmt.Sprint(got) != want {
			t.Errorf("to %d: %v %v, want %s", desired, got, err, want)
		}
	}
	state.Ordered = true
	if got, err := chooseLeaving(t.Context(), o, state, 2); err != nil || fmt.Sprint(got) != "[10.0.0.1 10.0.0.7]" {
		t.Errorf("ordered: %v %v", got, err)
	}
}

func TestStreamsCountsThoseThatRun(t *testing.T) {
	status := &pecanv1.StatusResponse{Workers: []*pecanv1.WorkerStatus{
		{Address: &pecanv1.WorkerAddress{Tcp: "10.0.0.7:5051"}, Streams: []*pecanv1.HeldStream{{Lease: 1}, {Lease: 2, Ended: true}, {Lease: 3}}},
		{Address: &pecanv1.WorkerAddress{Tcp: "10.0.0.7:5052"}, Streams: []*pecanv1.HeldStream{{Lease: 4}}},
		{Address: &pecanv1.WorkerAddress{Tcp: "[fd00::7]:5051"}, Streams: []*pecanv1.HeldStream{{Lease: 5}}},
	}}
	for address, want := range map[provision.Address]int{"10.0.0.7": 3, "10.0.0.7:5051": 2, "10.0.0.8": 0, "fd00::7": 1} {
		if got := streams(status, address); got != want {
			t.Errorf("%s: %d streams, want %d", address, got, want)
		}
	}
}
