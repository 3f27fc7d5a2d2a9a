package dispatcher_test

import (
	"strings"
	"testing"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/dispatcher"
)

// The number of streams follows the work that an earlier job over the same graph has measured. In mode deterministic it does not.
func TestTheNumberOfStreamsFollowsTheMeasuredWorkOfAnEarlierJob(t *testing.T) {
	s := startService(t, serviceOptions{graphs: dispatcher.NewGraphs(dispatcher.DefaultConfig())})
	w := s.worker(workerHello("w", 64))
	dataset, err := s.registerGraph(graphOf(t, "crop_last"), specOf(dtFloat, 8, 8, 3))
	if err != nil {
		t.Fatal(err)
	}
	unknown := s.job("c2", "", dataset.DatasetId, nil).Plan
	first := s.job("c1", "", dataset.DatasetId, &pecanv1.JobOptions{Streams: 2})
	s.open("c1", first.JobId, 0)
	w.measured(first.JobId, s.explain(first.JobId).Steps)
	w.figured(first.JobId)
	for range 2 {
		start := w.start()
		w.ended(start, 2000, 0)
		if err := s.finish(s.ctx(), "c1", start.Id, start.Lease, 2000); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := s.client.CloseEpoch(s.ctx(), &pecanv1.CloseEpochRequest{RequestId: "open-0", ClientId: "c1", JobId: first.JobId}); err != nil {
		t.Fatal(err)
	}
	// 3,000 of 4,000 elements took 300 s, and a stream is worth 0.4 s.
	known := s.job("c3", "", dataset.DatasetId, nil).Plan
	if known.NumStreams != 1000 || known.NumStreams == unknown.NumStreams || !strings.Contains(known.StreamsWhy, "an earlier job spent 400 s of CPU") {
		t.Errorf("%d streams before and %d after: %s", unknown.NumStreams, known.NumStreams, known.StreamsWhy)
	}
	same := s.job("c4", "", dataset.DatasetId, &pecanv1.JobOptions{Mode: pecanv1.Mode_MODE_DETERMINISTIC}).Plan
	if same.NumStreams != unknown.NumStreams {
		t.Errorf("%d streams in mode deterministic, %d before: %s", same.NumStreams, unknown.NumStreams, same.StreamsWhy)
	}
}
