package core_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
)

// valued is a cache of which the test knows what it saves.
type valued struct {
	bytes, epochs int
	// benefit is the saving in an epoch that reads it.
	benefit float64
}

func (v valued) value() float64 { return v.benefit * float64(v.epochs) }

// exactly returns the greatest value within a quota, by dynamic programming.
func exactly(caches []valued, quota int) float64 {
	most := make([]float64, quota+1)
	for _, each := range caches {
		for at := quota; at >= each.bytes; at-- {
			most[at] = max(most[at], most[at-each.bytes]+each.value())
		}
	}
	return most[quota]
}

// write lets a job of several epochs decide, write its cache and leave.
func (s *script) write(number int, each valued) {
	dataset, job := fmt.Sprintf("f%d", number), fmt.Sprintf("j%d", number+1)
	s.run("dataset fingerprint=" + dataset)
	s.run(fmt.Sprintf("job client=a request=r dataset=%s streams=1 candidates=k%d cached=auto order=off", dataset, number))
	for epoch := range each.epochs {
		s.run(fmt.Sprintf("open client=a request=o%d job=%s", epoch, job))
		if epoch == 0 {
			s.run(fmt.Sprintf("decided job=%s step=Take_k%d why=measured share=1 benefit=%g", job, number, each.benefit))
			s.run(fmt.Sprintf("written session=1 key=k%[1]d stream=0 of=1 name=c-k%[1]d-0-1-w1.seg bytes=%[2]d elements=10", number, each.bytes))
		}
		s.run(fmt.Sprintf("close client=a job=%s epoch=%d", job, epoch))
	}
	s.run("goodbye client=a")
	s.run("wait 100ms")
}

// kept returns the value and the bytes of the caches that are recorded.
func (s *script) kept(caches []valued) (value float64, bytes int) {
	for number, each := range caches {
		if s.core.State().Cache(fmt.Sprintf("k%d", number)) != nil {
			value, bytes = value+each.value(), bytes+each.bytes
		}
	}
	return value, bytes
}

// Twenty jobs have come and gone when a quota for half of their caches begins to hold. The dispatcher keeps a set that an exact
// solver would keep, by what its decisions predicted and by how many epochs read each. If the quota holds from the beginning,
// each new cache takes part as it comes, and what went does not come back.
func TestTheQuotaKeepsWhatAnExactSolverKeeps(t *testing.T) {
	for seed := range uint64(10) {
		rng := rand.New(rand.NewPCG(seed, 17))
		caches, sum := make([]valued, 20), 0
		for i := range caches {
			caches[i] = valued{bytes: 50 + rng.IntN(250), epochs: 1 + rng.IntN(5), benefit: 1 + 100*rng.Float64()}
			sum += caches[i].bytes
		}
		quota := sum / 2
		best := exactly(caches, quota)
		for _, early := range []bool{false, true} {
			s := newScript(t)
			if early {
				s.run(fmt.Sprintf("config cache_quota=%d", quota))
			}
			s.run("start cluster=c")
			s.run("hello session=1 worker=w1 slots=8 caches")
			for i, each := range caches {
				s.write(i, each)
			}
			if !early {
				if value, bytes := s.kept(caches); bytes != sum {
					t.Fatalf("seed %d: without a quota, %d of %d bytes are kept, worth %v", seed, bytes, sum, value)
				}
				s.cfg.CacheQuota = int64(quota)
				s.run("restart")
				s.run("wait 100ms")
			}
			value, bytes := s.kept(caches)
			t.Logf("seed %d, quota from the beginning %v: %.1f %% of the exact benefit in %d of %d bytes", seed, early, 100*value/best, bytes, quota)
			if bytes > quota || value < 0.9*best {
				t.Errorf("seed %d, quota from the beginning %v: kept %d bytes of %d, worth %.4g of %.4g", seed, early, bytes, quota, value, best)
			}
			s.checkReplay()
		}
	}
}
