package dispatcher_test

import (
	"testing"

	"github.com/pecan-ml/pecan/policies/autoscale"
	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/dispatcher"
	"github.com/pecan-ml/pecan/service/dispatcher/core/measure"
)

func TestTheTableOfPricesHasThePriceOfCaches(t *testing.T) {
	transfers := []*pecanv1.StoreTransfer{{Elements: 100, Bytes: 1e8, Seconds: 0.1, WorkS: 0.1}}
	facts := measure.Caching{
		Plan: &pecanv1.Plan{Repeat: 10, Steps: []*pecanv1.PlanStep{
			{Node: "decode", Inputs: []string{"read"}, Counts: pecanv1.PlanStep_SAME}, {Node: "read"},
		}},
		Options: &pecanv1.JobOptions{Placement: &pecanv1.PlacementOptions{Objective: "cost", MinRemote: 1}}, Elements: 1000,
		Nodes:   []*pecanv1.NodeMetrics{{Node: "decode", Elements: 1000, SelfCpuS: 20, BytesOut: 1e8}, {Node: "read", Elements: 1000, SelfCpuS: 0.1, BytesOut: 1e7}},
		Workers: []measure.StoreUser{{Cores: 1, Rates: &pecanv1.StoreRates{FreeBytes: -1, Reads: transfers, Writes: transfers}}}, Remote: 1,
		Steps: []measure.CachedStep{{Candidate: &pecanv1.CacheCandidate{Node: "decode", Plan: &pecanv1.CachePlan{Node: "decode", Upstream: []string{"decode", "read"}}}}},
		Quota: -1, KeptHours: 168,
	}
	// Ten epochs save 0.27, and 0.1 GB for a week cost 0.023 times the price of a gigabyte and month.
	for perGBMonth, want := range map[float64]string{0: "decode", 1: "decode", 100: ""} {
		s := startService(t, serviceOptions{deps: func(d *dispatcher.Deps) {
			d.Prices = func(string) (autoscale.Prices, string, error) { return autoscale.Published, "USD", nil }
			d.StoragePrice = func() float64 { return perGBMonth / 1e9 / 730 }
		}})
		if decided := s.d.ChooseCacheNow(facts); decided == nil || decided.Node != want {
			t.Errorf("a gigabyte for a month costs %v: the decision is %v", perGBMonth, decided)
		}
	}
}
