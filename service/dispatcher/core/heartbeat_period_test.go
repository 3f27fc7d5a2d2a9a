package core_test

import (
	"fmt"
	"testing"
	"time"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/dispatcher/core"
	"github.com/pecan-ml/pecan/service/dispatcher/core/durable"
)

// A large fleet has a longer period of heartbeats, which all of its workers get. It changes when workers are suspected, and not
// when they count as dead.
func TestALargeFleetHasFewerHeartbeats(t *testing.T) {
	c := core.New(core.DefaultConfig(), durable.NewState())
	now, periods := time.Duration(0), map[core.SessionID]float64{}
	decide := func(input any, after time.Duration) {
		t.Helper()
		now += after
		result := c.Decide(input, now)
		if result.Err != nil {
			t.Fatal(result.Err)
		}
		for _, effect := range result.Effects {
			command, ok := effect.(core.Command)
			if !ok {
				continue
			}
			switch kind := command.Message.GetKind().(type) {
			case *pecanv1.WorkerCommand_Welcome:
				periods[command.Session] = kind.Welcome.HeartbeatS
			case *pecanv1.WorkerCommand_SetHeartbeat:
				periods[command.Session] = kind.SetHeartbeat.PeriodS
			}
		}
	}
	const workers = 1000
	hello := func(session int) {
		decide(core.Hello{Session: core.SessionID(session), Message: &pecanv1.WorkerHello{
			Address: &pecanv1.WorkerAddress{WorkerId: fmt.Sprint("w", session), Tcp: fmt.Sprint("h:", session)}, MaxStreams: 8, Kind: "remote", Number: 1,
		}}, 0)
	}
	speak := func(session int) {
		decide(core.FromWorker{Session: core.SessionID(session), Message: &pecanv1.WorkerMessage{Kind: &pecanv1.WorkerMessage_Heartbeat{Heartbeat: &pecanv1.WorkerHeartbeat{}}}}, 0)
	}
	state := func(session int) string {
		for _, worker := range c.Status(now).Workers {
			if worker.Address.WorkerId == fmt.Sprint("w", session) {
				return worker.State
			}
		}
		return "none"
	}
	expect := func(what string, want float64, sessions ...int) {
		t.Helper()
		for _, session := range sessions {
			if got := periods[core.SessionID(session)]; got != want {
				t.Fatalf("%s: worker %d sends a heartbeat each %v s, want %v", what, session, got, want)
			}
		}
	}
	decide(core.Start{ClusterID: "cluster"}, 0)
	for session := 1; session <= 400; session++ {
		hello(session)
	}
	decide(core.Tick{}, time.Second)
	expect("400 workers", 1, 1, 400)
	for session := 401; session <= workers; session++ {
		hello(session)
	}
	decide(core.Tick{}, 0)
	expect("1,000 workers", 2.5, 1, 400, workers)
	hello(workers + 1)
	expect("a later worker", 2.5, workers+1)

	// Worker 1 falls silent. With the configured period, a worker is suspected after 3 s.
	speak(1)
	for passed := time.Duration(0); passed < 4500*time.Millisecond; passed += 500 * time.Millisecond {
		for session := 2; session <= workers+1; session++ {
			speak(session)
		}
		decide(core.Tick{}, 500*time.Millisecond)
	}
	if got := state(1); got != "connected" {
		t.Errorf("after 4.5 s of silence the worker is %q", got)
	}
	decide(core.Tick{}, 100*time.Millisecond)
	if got := state(1); got != "suspect" {
		t.Errorf("after 4.6 s of silence the worker is %q", got)
	}
	for passed := 4600 * time.Millisecond; passed <= 10*time.Second; passed += 200 * time.Millisecond {
		for session := 2; session <= workers+1; session++ {
			speak(session)
		}
		decide(core.Tick{}, 200*time.Millisecond)
	}
	if got := state(1); got != "none" {
		t.Errorf("after more than 10 s of silence the worker is %q", got)
	}

	for session := 11; session <= workers+1; session++ {
		decide(core.FromWorker{Session: core.SessionID(session), Message: &pecanv1.WorkerMessage{Kind: &pecanv1.WorkerMessage_Goodbye{Goodbye: &pecanv1.WorkerGoodbye{}}}}, 0)
	}
	speak(2)
	decide(core.Tick{}, 2*time.Second)
	expect("9 workers", 1, 2, 10)
	decide(core.Tick{}, 2400*time.Millisecond)
	if got := state(2); got != "connected" {
		t.Errorf("a worker whose longer period may still run is %q", got)
	}
	speak(2)
	decide(core.Tick{}, 1600*time.Millisecond)
	decide(core.Tick{}, 1500*time.Millisecond)
	if got := state(2); got != "suspect" {
		t.Errorf("a worker with the configured period is %q after 3.1 s", got)
	}
}

// A dispatcher that stands still for less than the time after which it suspects a worker counts nobody in a large fleet as dead.
func TestAStallOfTheDispatcherKillsNoWorkerOfALargeFleet(t *testing.T) {
	cfg := core.DefaultConfig()
	cfg.SuspectAfter, cfg.DeadAfter = 9*time.Second, 10*time.Second
	c := core.New(cfg, durable.NewState())
	now := time.Duration(0)
	decide := func(input any, after time.Duration) {
		t.Helper()
		now += after
		if result := c.Decide(input, now); result.Err != nil {
			t.Fatal(result.Err)
		}
	}
	const workers = 1000
	decide(core.Start{ClusterID: "cluster"}, 0)
	for session := 1; session <= workers; session++ {
		decide(core.Hello{Session: core.SessionID(session), Message: &pecanv1.WorkerHello{
			Address: &pecanv1.WorkerAddress{WorkerId: fmt.Sprint("w", session), Tcp: fmt.Sprint("h:", session)}, MaxStreams: 8, Kind: "remote", Number: 1,
		}}, 0)
	}
	// The fleet's period is 2.5 s now. The next heartbeats would have arrived when the dispatcher is stopped.
	for range 24 {
		decide(core.Tick{}, 100*time.Millisecond)
	}
	decide(core.Tick{}, 8*time.Second)
	if alive := len(c.Status(now).Workers); alive != workers {
		t.Fatalf("after a stall of 8 s, %d of %d workers are alive", alive, workers)
	}
}
