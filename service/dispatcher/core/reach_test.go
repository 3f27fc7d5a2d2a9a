package core

import (
	"testing"
	"time"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/dispatcher/core/durable"
)

// A trainer that lives for months may lose the route to many workers.
func TestWorkersThatATrainerReachesAgainAreForgotten(t *testing.T) {
	c := New(DefaultConfig(), durable.NewState())
	now, number := time.Second, uint64(0)
	decide := func(input any) {
		t.Helper()
		if result := c.Decide(input, now); result.Err != nil {
			t.Fatal(result.Err)
		}
	}
	decide(Start{ClusterID: "c"})
	decide(AddDataset{DerivedIDs: []string{"f"}, Fingerprint: "f", Spec: &pecanv1.DatasetSpec{}})
	for session, id := range map[SessionID]string{1: "w1", 2: "w2"} {
		decide(Hello{Session: session, Message: &pecanv1.WorkerHello{Address: &pecanv1.WorkerAddress{WorkerId: id, Tcp: id + ":1"}, MaxStreams: 1}})
	}
	decide(CreateJob{JobID: "j", Plan: &pecanv1.Plan{NumStreams: 4}, Request: &pecanv1.CreateJobRequest{
		RequestId: "r", ClientId: "a", DatasetId: "f", Options: &pecanv1.JobOptions{Mode: pecanv1.Mode_MODE_EXACTLY_ONCE},
	}})
	decide(&pecanv1.OpenEpochRequest{RequestId: "o", ClientId: "a", JobId: "j"})
	stream := c.state.Jobs()[0].Epochs[0].Find(0)
	for range 3 {
		number++
		decide(&pecanv1.ReportWorkerRequest{
			ClientId: "a", Id: &pecanv1.StreamId{JobId: "j"}, Lease: stream.Lease, WorkerId: stream.Worker.GetWorkerId(), Number: number,
		})
	}
	if n := len(c.clients["a"].unreached); n != 1 {
		t.Fatalf("the trainer avoids %d workers after its reports", n)
	}
	for range 100 {
		now += time.Second / 2
		decide(Tick{})
		decide(&pecanv1.ClientHeartbeatRequest{ClientId: "a", JobIds: []string{"j"}})
	}
	if n := len(c.clients["a"].unreached); n != 0 {
		t.Errorf("the trainer avoids %d workers after a minute", n)
	}
}
