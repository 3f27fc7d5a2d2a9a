package caching_test

import (
	"testing"

	"github.com/pecan-ml/pecan/policies/autoscale"
	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/dispatcher/caching"
	"github.com/pecan-ml/pecan/service/dispatcher/core/measure"
)

// onOneSource is decoding() with eight workers of four threads on a source that gives 500 elements per second to all of them. A
// thread needs 0.1 ms to read an element, and 64 ms if all threads wait for the source.
func onOneSource() measure.Caching {
	facts := decoding()
	facts.Remote = 8
	for range 7 {
		facts.Workers = append(facts.Workers, measure.StoreUser{Cores: 4})
	}
	read := facts.Nodes[3]
	read.Op, read.SelfCpuS = "TFRecordDatasetV2", 1320*0.064
	facts.Source = []measure.SourceUse{
		{Workers: 1, Reading: measure.Reading{Elements: 400, Seconds: 400 * 0.0001, All: 400 * 0.0201}, PerSecond: 199},
		{Workers: 8, Reading: measure.Reading{Elements: 920, Seconds: 920 * 0.064, All: 920 * 0.084}, PerSecond: 500},
	}
	return facts
}

func TestWorkersShareASlowSource(t *testing.T) {
	d := decide(t, onOneSource())
	if !near(d.Compute.Seconds, 32000/500.0) || d.Compute.Bound != "the source" {
		t.Errorf("an epoch that computes: %v", d.Compute)
	}
	// What was read is the smallest cache with which the trainers do not wait.
	if d.Node != "read" || d.Candidates[0].Get.Bound != "the trainers" {
		t.Errorf("chosen %q: %s; an epoch that reads: %v", d.Node, d.Why, d.Candidates[0].Get)
	}
	// Three workers decode as fast as the source is. More would wait.
	free := onOneSource()
	free.Options.Placement = &pecanv1.PlacementOptions{Objective: "cost", MinRemote: 1}
	if d := mustDecide(t, free, caching.Prices{Prices: autoscale.Published}); d.Compute.Remote != 3 {
		t.Errorf("an epoch that computes has %d workers: %v", d.Compute.Remote, d.Compute)
	}
	// Waiting for the source is not subtracted again as waiting for a core.
	free.CPUWait = 0.75
	if d := mustDecide(t, free, caching.Prices{Prices: autoscale.Published}); d.Compute.Remote != 3 {
		t.Errorf("an epoch that computes has %d workers: %v", d.Compute.Remote, d.Compute)
	}
	alone := onOneSource()
	alone.Source = alone.Source[1:]
	if d := decide(t, alone); d.Compute.Bound != "the workers" || !near(d.Compute.Seconds, 32000*0.084/32) {
		t.Errorf("one number of workers has been seen: %v", d.Compute)
	}
}

// A function of an interleave reads the files. Only the time of its reader is one of the source.
func TestTheReaderOfAFunctionIsTheSource(t *testing.T) {
	facts := onOneSource()
	read := facts.Nodes[3]
	read.Op, read.SelfCpuS = "ParallelInterleaveDatasetV4", 1320*0.074
	read.Inside = []*pecanv1.NodeMetrics{
		{Node: "read:records", Op: "TFRecordDatasetV2", Elements: 1320, SelfCpuS: 1320 * 0.064}, {Node: "read:parse", Op: "MapDataset", Elements: 1320, SelfCpuS: 1320 * 0.01},
	}
	facts.Workers = facts.Workers[:1]
	facts.Remote = 1
	// 30.1 ms of four threads for each element: decoding, parsing, and reading without other workers.
	if d := decide(t, facts); !near(d.Compute.Seconds, 32000*0.0301/4) || d.Compute.Bound != "the workers" {
		t.Errorf("an epoch that computes: %v", d.Compute)
	}
}

// The published formula adds times of threads, and knows no limits.
func TestThePublishedPolicyKnowsNoLimitOfTheSource(t *testing.T) {
	facts := onOneSource()
	facts.Options.Cache = pecanv1.Cache_CACHE_PAPER
	facts.Steps[1].Candidate.Role = pecanv1.CacheCandidate_FULL_CACHE
	if d, _ := caching.Decide(facts, caching.Prices{}); !near(d.GetCompute().GetSeconds(), 32000*0.084) {
		t.Errorf("an epoch that computes: %v", d.GetCompute())
	}
}

// Four workers read from a store of 300 MB/s that is throttled for all of them, or for each.
func TestWorkersShareTheStore(t *testing.T) {
	onOneStore := func(together float64) *pecanv1.CacheDecision {
		facts := decoding()
		facts.Workers[0].Rates.Reads = samples(300e6)
		for range 3 {
			facts.Workers = append(facts.Workers, measure.StoreUser{Cores: 4})
		}
		facts.Remote, facts.Trainers[0].Subs[0].Waited = 4, 9.9
		facts.Reads = []measure.StoreUse{{Workers: 4, Elements: 10 * together / 150e3, Bytes: 10 * together, Seconds: 10}}
		return decide(t, facts)
	}
	// 32,000 elements of 150 kB, and 20 µs more for each.
	alone := 32000 * (20e-6 + 150e3/300e6)
	if get := onOneStore(280e6).Candidates[1].Get; !near(get.Seconds, alone) || get.Bound != "the store" {
		t.Errorf("all together read 280 MB/s: %v, want %v s", get, alone)
	}
	if get := onOneStore(1200e6).Candidates[1].Get; !near(get.Seconds, 10) || get.Bound != "the trainers" {
		t.Errorf("all together read 1.2 GB/s: %v, and the trainers take 10 s", get)
	}
}
