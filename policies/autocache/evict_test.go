package autocache_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/pecan-ml/pecan/policies/autocache"
)

// exact returns the greatest benefit of caches with whole sizes below a quota, by dynamic programming.
func exact(caches []autocache.Cache, quota int) float64 {
	most := make([]float64, quota+1)
	for _, c := range caches {
		for at := quota; at >= int(c.Bytes); at-- {
			most[at] = max(most[at], most[at-int(c.Bytes)]+c.Benefit)
		}
	}
	return most[quota]
}

// caches returns random caches with sizes and benefits that are more or less in proportion.
func caches(rng *rand.Rand, n int) (all []autocache.Cache, total float64) {
	for i := range n {
		c := autocache.Cache{Key: fmt.Sprint(i), Bytes: math.Ceil(300 * math.Exp(-3*rng.Float64()))}
		c.Benefit = math.Pow(c.Bytes, []float64{0, 0.5, 1, 1.5}[rng.IntN(4)]) * math.Exp(rng.NormFloat64())
		all, total = append(all, c), total+c.Bytes
	}
	return all, total
}

func kept(all []autocache.Cache, e autocache.Eviction) (bytes, benefit float64) {
	for i, c := range all {
		if e.Kept[i] {
			bytes, benefit = bytes+c.Bytes, benefit+c.Benefit
		}
	}
	return bytes, benefit
}

// TestEvictKeepsWhatAnExactSolverKeeps has 20 jobs with a cache each, and quotas from a tenth to nine tenths of all.
func TestEvictKeepsWhatAnExactSolverKeeps(t *testing.T) {
	worst := 1.0
	for seed := range uint64(3000) {
		rng := rand.New(rand.NewPCG(seed, 0))
		all, total := caches(rng, 20)
		quota := int(total * (0.1 + 0.8*rng.Float64()))
		bytes, benefit := kept(all, autocache.Evict(all, autocache.Quota{Bytes: float64(quota)}))
		best := exact(all, quota)
		if bytes > float64(quota) || benefit > best*(1+1e-9) {
			t.Fatalf("seed %d: %v bytes stay of %v, with a benefit of %v, and the exact solver has %v", seed, bytes, quota, benefit, best)
		}
		worst = min(worst, benefit/best)
	}
	t.Logf("the benefit is at least %.4f of that of an exact solver", worst)
	if worst < 0.9 {
		t.Errorf("the benefit is %.3f of that of an exact solver, want at least 0.9", worst)
	}
}

func TestEvictObeysAllQuotasAndPins(t *testing.T) {
	for seed := range uint64(2000) {
		rng := rand.New(rand.NewPCG(seed, 1))
		all, total := caches(rng, 30)
		quota := autocache.Quota{Bytes: total * rng.Float64(), Tenants: map[string]float64{"a": total * rng.Float64() / 2, "b": total * rng.Float64() / 2}}
		for i := range all {
			all[i].Tenant = []string{"a", "b", "c"}[rng.IntN(3)]
			all[i].Pinned = rng.IntN(10) == 0
			all[i].TTL, all[i].Unused = 10, 12*rng.Float64()
		}
		e := autocache.Evict(all, quota)
		sums, pinned := map[string]float64{}, map[string]float64{}
		for i, c := range all {
			if e.Kept[i] {
				sums[c.Tenant], sums[""] = sums[c.Tenant]+c.Bytes, sums[""]+c.Bytes
			}
			if c.Pinned {
				pinned[c.Tenant], pinned[""] = pinned[c.Tenant]+c.Bytes, pinned[""]+c.Bytes
			}
			if c.Pinned != e.Kept[i] && (c.Pinned || c.Unused > c.TTL) {
				t.Fatalf("seed %d: cache %+v: kept is %v", seed, c, e.Kept[i])
			}
			if e.Reasons[i] == "" {
				t.Fatalf("seed %d: cache %d has no reason", seed, i)
			}
		}
		for tenant, limit := range map[string]float64{"": quota.Bytes, "a": quota.Tenants["a"], "b": quota.Tenants["b"]} {
			// Pinned caches stay also above a quota.
			if sums[tenant] > max(limit, pinned[tenant])*(1+1e-9) {
				t.Fatalf("seed %d: %v bytes of tenant %q stay, the quota is %v and %v are pinned", seed, sums[tenant], tenant, limit, pinned[tenant])
			}
		}
	}
}

// TestEvictOfManyCachesIsNearlyTheBest has so many caches that the search ends before it has compared all sets.
func TestEvictOfManyCachesIsNearlyTheBest(t *testing.T) {
	all, total := caches(rand.New(rand.NewPCG(1, 2)), 1000)
	bytes, benefit := kept(all, autocache.Evict(all, autocache.Quota{Bytes: math.Floor(total / 2)}))
	if best := exact(all, int(total/2)); bytes > total/2 || benefit < 0.99*best {
		t.Errorf("1,000 caches: %v of %v bytes stay with a benefit of %v, and the best is %v", bytes, total, benefit, best)
	}
}

// BenchmarkEvict has as many caches as a dispatcher records, and room for half of them.
func BenchmarkEvict(b *testing.B) {
	all, total := caches(rand.New(rand.NewPCG(1, 2)), 1000)
	for b.Loop() {
		autocache.Evict(all, autocache.Quota{Bytes: math.Floor(total / 2)})
	}
}
