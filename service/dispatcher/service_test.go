package dispatcher_test

import (
	"testing"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/proto/reason"
)

func TestAnEpochGoesFromRegistrationToItsEnd(t *testing.T) {
	s := startService(t, serviceOptions{})
	w := s.worker(workerHello("w1", 4))
	if w.welcome.GetClusterId() == "" || w.welcome.HeartbeatS != 1 {
		t.Fatalf("welcome %v", w.welcome)
	}
	dataset := s.register(&pecanv1.Plan{NumStreams: 2})
	job := s.job("c1", "", dataset, nil)
	if !job.Created || job.Workers != 1 || job.Durable || job.Plan.GetNumStreams() != 2 || job.ClusterId != w.welcome.ClusterId {
		t.Fatalf("job %v", job)
	}
	epoch := s.open("c1", job.JobId, 0)
	watch := s.watch("c1", job.JobId, epoch.Epoch)
	starts := []*pecanv1.StartStream{w.start(), w.start()}
	update := watch.until("with both streams leased", ready)
	if !update.StreamsFinal || !update.NoMoreStreams || update.TotalStreams != 2 || len(update.Streams) != 2 {
		t.Fatalf("update %v", update)
	}
	for i, start := range starts {
		if start.Id.Stream != uint32(i) || start.Fingerprint != dataset || start.Options.GetMode() != pecanv1.Mode_MODE_EXACTLY_ONCE {
			t.Fatalf("start %v", start)
		}
		w.ended(start, 10, 0)
	}
	watch.until("with both streams made", func(u *pecanv1.EpochUpdate) bool { return u.Streams[0].Ended && u.Streams[1].Ended })
	for _, start := range starts {
		if err := s.finish(s.ctx(), "c1", start.Id, start.Lease, 10); err != nil {
			t.Fatal(err)
		}
		if stop := w.stopped(); stop.Id.Stream != start.Id.Stream {
			t.Fatalf("stop %v", stop)
		}
	}
	if _, err := s.client.CloseEpoch(s.ctx(), &pecanv1.CloseEpochRequest{ClientId: "c1", JobId: job.JobId, Epoch: epoch.Epoch}); err != nil {
		t.Fatal(err)
	}
	status, err := s.client.Status(s.ctx(), &pecanv1.StatusRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if e := status.Jobs[0].Epochs[0]; e.State != "delivered" || e.Elements != 20 {
		t.Fatalf("epoch %v", e)
	}
	if _, err := s.client.ClientGoodbye(s.ctx(), &pecanv1.ClientGoodbyeRequest{ClientId: "c1"}); err != nil {
		t.Fatal(err)
	}
	if status, err = s.client.Status(s.ctx(), &pecanv1.StatusRequest{}); err != nil || len(status.Jobs) != 0 || status.Clients != 0 {
		t.Fatalf("after goodbye: %v %v", status, err)
	}
}

func TestFinishStreamsRefusesOneStreamAlone(t *testing.T) {
	s := startService(t, serviceOptions{})
	w := s.worker(workerHello("w1", 4))
	job := s.job("c1", "", s.register(&pecanv1.Plan{NumStreams: 2}), nil)
	epoch := s.open("c1", job.JobId, 0)
	starts := []*pecanv1.StartStream{w.start(), w.start()}
	for _, start := range starts {
		w.ended(start, 10, 0)
	}
	request := &pecanv1.FinishStreamsRequest{ClientId: "c1", JobId: job.JobId, Epoch: epoch.Epoch, Streams: []*pecanv1.FinishedStream{
		{Stream: 0, Lease: starts[1].Lease + 1, Count: 10, Assignment: 1}, {Stream: 1, Lease: starts[1].Lease, Count: 10, Assignment: 1},
	}}
	response, err := s.client.FinishStreams(s.ctx(), request)
	if err != nil || len(response.Refused) != 1 || response.Refused[0].Stream != 0 || response.Refused[0].Error.Reason != string(reason.StaleLease) {
		t.Fatalf("%v %v", response, err)
	}
	request.Streams[0].Lease = starts[0].Lease
	if response, err = s.client.FinishStreams(s.ctx(), request); err != nil || len(response.Refused) != 0 {
		t.Fatalf("%v %v", response, err)
	}
	request.Streams = make([]*pecanv1.FinishedStream, 4097)
	if _, err = s.client.FinishStreams(s.ctx(), request); !reason.Is(err, reason.BadArgument) {
		t.Fatalf("too many streams: %v", err)
	}
}
