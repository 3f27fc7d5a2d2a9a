package dispatcher_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/proto/reason"
	"github.com/pecan-ml/pecan/service/dispatcher"
	"github.com/pecan-ml/pecan/service/store"
)

// What gRPC refuses itself has a reason as well.
func TestARequestAboveTheWireLimitHasAReason(t *testing.T) {
	s := startService(t, serviceOptions{})
	_, err := s.client.CreateJob(s.ctx(), &pecanv1.CreateJobRequest{RequestId: "r", ClientId: "c", ClientHost: strings.Repeat("h", 40<<20)})
	wantReason(t, err, reason.MessageTooLarge)
}

func TestJobsClientsAndDatasetsAreLimited(t *testing.T) {
	kept := store.NewMemory()
	s := startService(t, serviceOptions{store: kept, change: func(c *dispatcher.Config) {
		c.Core.MaxJobs, c.Core.MaxClients, c.Core.MaxDatasets = 2, 2, 2
	}})
	first, second := s.register(&pecanv1.Plan{NumStreams: 1}), s.register(&pecanv1.Plan{NumStreams: 2})
	named := s.job("c1", "named", first, nil)
	s.job("c2", "", second, nil)
	before := s.d.StateHash()
	create := func(client, name, dataset string) error {
		_, err := s.client.CreateJob(s.ctx(), &pecanv1.CreateJobRequest{RequestId: "another", ClientId: client, DatasetId: dataset, JobName: name})
		return err
	}
	refused := func(what, flag string, err error) {
		t.Helper()
		wantReason(t, err, reason.ServiceLimit)
		if !strings.Contains(err.Error(), flag) {
			t.Errorf("%s: %v does not name %s", what, err, flag)
		}
		if s.d.StateHash() != before {
			t.Errorf("%s: the durable state changed", what)
		}
	}
	refused("a private job", "--max-jobs", create("c1", "", first))
	refused("a named job", "--max-jobs", create("c1", "other", first))
	refused("a client of a job that is there", "--max-clients", create("c3", "named", first))
	third, err := proto.Marshal(&pecanv1.Plan{NumStreams: 3})
	if err != nil {
		t.Fatal(err)
	}
	_, err = s.upload(&pecanv1.RegisterDatasetRequest_Header{Spec: spec, GraphBytes: int64(len(third))}, third)
	refused("a dataset", "--max-datasets", err)
	fingerprint, _ := planGraphs{}.Check(third, spec.Components)
	if _, err := kept.Graph(fingerprint); err == nil {
		t.Error("the graph of a refused dataset is stored")
	}
	// Existing state is not affected.
	if s.register(&pecanv1.Plan{NumStreams: 1}) != first || s.job("c1", "named", first, nil).JobId != named.JobId {
		t.Error("what was there is another")
	}
}

func TestEpochsOfAJobAreBounded(t *testing.T) {
	s := startService(t, serviceOptions{change: func(c *dispatcher.Config) { c.Core.MaxEpochs = 2 }})
	dataset := s.register(&pecanv1.Plan{NumStreams: 1})
	job, other := s.job("c1", "", dataset, nil).JobId, s.job("c2", "", dataset, nil).JobId
	s.open("c1", job, 0)
	second := s.open("c1", job, 1).Epoch
	before := s.d.StateHash()
	_, err := s.client.OpenEpoch(s.ctx(), &pecanv1.OpenEpochRequest{RequestId: "third", ClientId: "c1", JobId: job})
	wantReason(t, err, reason.ServiceLimit)
	if !strings.Contains(err.Error(), "--max-epochs") {
		t.Errorf("%v does not name the flag", err)
	}
	if s.d.StateHash() != before {
		t.Error("the durable state changed")
	}
	s.open("c2", other, 0)
	if _, err := s.client.CloseEpoch(s.ctx(), &pecanv1.CloseEpochRequest{ClientId: "c1", JobId: job, Epoch: second}); err != nil {
		t.Fatal(err)
	}
	s.open("c1", job, 2)
}

// Trainers that disappear silently cost nothing after their timeouts.
func TestTwoThousandAbandonedJobsAreCollected(t *testing.T) {
	t.Parallel()
	s := startService(t, serviceOptions{})
	dataset := s.register(&pecanv1.Plan{NumStreams: 4})
	for i := range 2000 {
		name := ""
		if i%2 == 1 {
			name = fmt.Sprintf("named-%d", i)
		}
		client := fmt.Sprintf("c%d", i)
		job := s.job(client, name, dataset, nil)
		if i%20 == 0 {
			s.open(client, job.JobId, 0)
		}
	}
	status := func() *pecanv1.StatusResponse {
		answer, err := s.client.Status(s.ctx(), &pecanv1.StatusRequest{}, grpc.MaxCallRecvMsgSize(64<<20))
		if err != nil {
			t.Fatal(err)
		}
		return answer
	}
	if n := len(status().Jobs); n != 2000 {
		t.Fatalf("%d jobs", n)
	}
	s.settle("the clients' time is over", 2*time.Minute, func() bool { return status().Clients == 0 })
	if n := len(status().Jobs); n != 1000 {
		t.Fatalf("%d jobs", n)
	}
	s.settle("the named jobs' time is over", 6*time.Minute, func() bool { return len(status().Jobs) == 0 })
}

// settle advances the clock in steps that no timeout mistakes for a pause, until a condition holds or the time is
// over.
func (s *service) settle(what string, within time.Duration, ok func() bool) {
	s.t.Helper()
	for ; within > 0; within -= 2 * time.Second {
		s.clock.Advance(2 * time.Second)
		if ok() {
			return
		}
	}
	s.t.Fatalf("did not come about: %s", what)
}

func TestMetadataIsBounded(t *testing.T) {
	s := startService(t, serviceOptions{})
	stream, err := s.client.WorkerSession(s.ctx())
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.Send(&pecanv1.WorkerMessage{Kind: &pecanv1.WorkerMessage_Hello{Hello: &pecanv1.WorkerHello{
		Address: &pecanv1.WorkerAddress{WorkerId: "w", Tcp: "h:1"}, MaxStreams: 1, Version: strings.Repeat("v", 5000),
	}}}); err != nil {
		t.Fatal(err)
	}
	_, err = stream.Recv()
	wantReason(t, err, reason.BadArgument)
	if code := status.Code(err); code != codes.InvalidArgument {
		t.Fatal(fmt.Sprint(code))
	}
}
