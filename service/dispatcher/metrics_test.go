package dispatcher_test

import (
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/dispatcher"
)

// sum adds the samples of a metric whose labels contain a text.
func sum(t *testing.T, from prometheus.Gatherer, name, labels string) (total float64, samples int) {
	t.Helper()
	families, err := from.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range families {
		if family.GetName() != name {
			continue
		}
		for _, metric := range family.Metric {
			if strings.Contains(metric.String(), labels) {
				samples++
				total += metric.GetCounter().GetValue() + metric.GetGauge().GetValue() + float64(metric.GetHistogram().GetSampleCount())
			}
		}
	}
	return total, samples
}

// Metrics follow Prometheus' rules and count what happened. Those of a job end with it.
func TestMetricsFollowJobs(t *testing.T) {
	registry := prometheus.NewRegistry()
	s := startService(t, serviceOptions{metrics: registry, change: func(c *dispatcher.Config) { c.Core.JobTimeout = time.Second }})
	want := func(name, labels string, value float64) {
		t.Helper()
		if got, _ := sum(t, registry, name, labels); got != value {
			t.Errorf("%s{%s} is %v, want %v", name, labels, got, value)
		}
	}
	w := s.worker(workerHello("w1", 4))
	dataset := s.register(&pecanv1.Plan{NumStreams: 2})
	job := s.job("c1", "team", dataset, nil)
	epoch := s.open("c1", job.JobId, 0)
	watch := s.watch("c1", job.JobId, epoch.Epoch)
	first, second := w.start(), w.start()
	watch.until("with both streams leased", ready)
	want("pecan_dispatcher_jobs", "", 1)
	want("pecan_dispatcher_job_info", job.JobId, 1)
	want("pecan_dispatcher_job_info", `"exactly_once"`, 1)
	want("pecan_dispatcher_workers", `"connected"`, 1)
	want("pecan_dispatcher_streams", `"leased"`, 2)
	want("pecan_dispatcher_leases_granted_total", "", 2)
	for _, start := range []*pecanv1.StartStream{first, second} {
		w.ended(start, 10, 0)
		watch.until("with the stream made", func(u *pecanv1.EpochUpdate) bool { return u.Streams[start.Id.Stream].Ended })
		if err := s.finish(s.ctx(), "c1", start.Id, start.Lease, 10); err != nil {
			t.Fatal(err)
		}
	}
	want("pecan_dispatcher_elements_delivered_total", "", 20)
	want("pecan_dispatcher_streams_delivered_total", "", 2)
	want("pecan_dispatcher_leases_lost_total", `"moved"`, 0)
	pass := &pecanv1.ClientHeartbeatRequest_Pass{JobId: job.JobId, Epoch: epoch.Epoch, DuplicatesDropped: 3}
	for range 2 {
		if _, err := s.client.ClientHeartbeat(s.ctx(), &pecanv1.ClientHeartbeatRequest{ClientId: "c1", JobIds: []string{job.JobId}, Passes: []*pecanv1.ClientHeartbeatRequest_Pass{pass}}); err != nil {
			t.Fatal(err)
		}
		want("pecan_dispatcher_duplicates_dropped_total", "", 3)
	}
	if _, err := s.client.CreateJob(s.ctx(), &pecanv1.CreateJobRequest{RequestId: "r", ClientId: "c1", DatasetId: "none"}); err == nil {
		t.Fatal("an unknown dataset was taken")
	}
	want("pecan_dispatcher_requests_rejected_total", `"DATASET_UNKNOWN"`, 1)
	if written, _ := sum(t, registry, "pecan_dispatcher_records_written_total", ""); written < 10 {
		t.Errorf("%v records", written)
	}
	if problems, err := testutil.GatherAndLint(registry); err != nil || len(problems) > 0 {
		t.Errorf("%v %v", problems, err)
	}
	if _, err := s.client.ClientGoodbye(s.ctx(), &pecanv1.ClientGoodbyeRequest{ClientId: "c1"}); err != nil {
		t.Fatal(err)
	}
	deadline := s.ctx()
	for {
		s.clock.Advance(500 * time.Millisecond)
		if _, shown := sum(t, registry, "pecan_dispatcher_job_info", ""); shown == 0 {
			break
		}
		if deadline.Err() != nil {
			t.Fatal("the metrics of a removed job stay")
		}
	}
	want("pecan_dispatcher_jobs", "", 0)
	want("pecan_dispatcher_elements_delivered_total", "", 20)
}
