package core_test

import (
	"fmt"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/dispatcher/core"
	"github.com/pecan-ml/pecan/service/dispatcher/core/durable"
)

// BenchmarkReplay applies the records of a busy dispatcher from bytes, as at a start. One operation is one
// record.
func BenchmarkReplay(b *testing.B) {
	s := newSim(&testing.T{}, 1)
	for range 400 {
		s.step()
	}
	var data [][]byte
	for _, record := range s.records {
		bytes, err := proto.Marshal(record)
		if err != nil {
			b.Fatal(err)
		}
		data = append(data, bytes)
	}
	state := durable.NewState()
	i := 0
	for b.Loop() {
		if i == len(data) {
			i, state = 0, durable.NewState()
		}
		record := &pecanv1.Record{}
		if err := proto.Unmarshal(data[i], record); err != nil {
			b.Fatal(err)
		}
		if err := state.Apply(record); err != nil {
			b.Fatal(err)
		}
		i++
	}
}

// BenchmarkManyJobs lets time pass once over 2,000 jobs of 4 streams on 4 workers of 4 slots. Nearly all streams
// wait for a slot, and each trainer watches its pass.
func BenchmarkManyJobs(b *testing.B) {
	c := core.New(core.DefaultConfig(), durable.NewState())
	decide := func(input any) {
		if result := c.Decide(input, time.Second); result.Err != nil {
			b.Fatal(result.Err)
		}
	}
	decide(core.Start{ClusterID: "c"})
	decide(core.AddDataset{DerivedIDs: []string{"f"}, Fingerprint: "f", Spec: &pecanv1.DatasetSpec{}})
	for i := range 2000 {
		job, client := fmt.Sprintf("j%d", i), fmt.Sprintf("c%d", i)
		decide(core.CreateJob{JobID: job, Plan: &pecanv1.Plan{NumStreams: 4}, Request: &pecanv1.CreateJobRequest{
			RequestId: "r", ClientId: client, DatasetId: "f", Options: &pecanv1.JobOptions{Mode: pecanv1.Mode_MODE_EXACTLY_ONCE},
		}})
		decide(&pecanv1.OpenEpochRequest{RequestId: "o", ClientId: client, JobId: job})
		decide(core.Watch{ID: core.WatchID(i + 1), Request: &pecanv1.WatchEpochRequest{ClientId: client, JobId: job}})
	}
	for i := range 4 {
		id := fmt.Sprintf("w%d", i)
		decide(core.Hello{Session: core.SessionID(i + 1), Message: &pecanv1.WorkerHello{
			Address: &pecanv1.WorkerAddress{WorkerId: id, Tcp: id + ":1"}, MaxStreams: 4,
		}})
	}
	for b.Loop() {
		decide(core.Tick{})
	}
}

// BenchmarkMerge merges further graphs where 10,000 are known. Others leave.
func BenchmarkMerge(b *testing.B) {
	c := core.New(core.DefaultConfig(), durable.NewState())
	c.Decide(core.Start{ClusterID: "c", UnixS: 2_000_000_000}, 0)
	merge := func(first, n int) {
		if result := c.Decide(&pecanv1.MergeLearnedRequest{Learned: manyGraphs(first, n, 1_000_000_000)}, 0); len(result.Records) != n {
			b.Fatalf("%d records, %v", len(result.Records), result.Err)
		}
	}
	known, next := 10_000, 256
	merge(0, known)
	for b.Loop() {
		merge(known, next)
		known += next
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*next), "ns/graph")
}
