package placing

import (
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pecan-ml/pecan/policies/autoscale"
	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
)

// BenchmarkDecide lets one Placer decide for 1,000 jobs that begin together. Each may have up to 10,000 remote and 8 local
// workers, and needs from 1 to all of them. One operation is 12 windows of each job: its search, and windows after that. The
// metrics are CPU times of single decisions in ms, without garbage collection in the background: of those of a search and of
// all. Decisions of a dispatcher are made one after the other, so another metric is how many a core makes per second.
func BenchmarkDecide(b *testing.B) {
	const remote, local, windows = 10_000, 8, 12
	for _, jobs := range []int{100, 1000} {
		b.Run(fmt.Sprintf("%d_jobs_%d_remote_%d_local", jobs, remote, local), func(b *testing.B) {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			var searches, all []time.Duration
			for b.Loop() {
				p, rng := New(), rand.New(rand.NewPCG(1, 1))
				hosts, requests, last := make([]*sharedHost, jobs), make([]Request, jobs), make([]*pecanv1.Placement, jobs)
				for n := range jobs {
					needed := math.Pow(remote, rng.Float64())
					hosts[n] = &sharedHost{step: 5e-5, element: 5e-5 * needed, base: 0.1, perLocal: 0.05, starved: 1}
					requests[n] = Request{JobID: fmt.Sprint(n), Options: &pecanv1.PlacementOptions{Objective: "cost"}, Remote: remote, Registered: remote, Local: local, Prices: autoscale.Published}
				}
				for window := range windows + 1 {
					for n, h := range hosts {
						r := &requests[n]
						if window > 0 {
							r.Window, r.Now = h.window(int(last[n].Remote), int(last[n].Local)), h.now
						}
						begun := threadTime(b)
						last[n], _ = p.Decide(*r)
						took := threadTime(b) - begun
						r.Window = nil
						all = append(all, took)
						if window > 0 && last[n].State == "search" {
							searches = append(searches, took)
						}
					}
				}
				for n, d := range last {
					if !d.Converged {
						b.Errorf("job %d, which needs %.0f workers: %v", n, hosts[n].element/hosts[n].step, d)
					}
				}
			}
			slices.Sort(searches)
			slices.Sort(all)
			sum := time.Duration(0)
			for _, one := range searches {
				sum += one
			}
			ms := func(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1e6 }
			b.ReportMetric(ms(searches[len(searches)/2]), "search-ms/p50")
			b.ReportMetric(ms(searches[len(searches)*99/100]), "search-ms/p99")
			b.ReportMetric(ms(searches[len(searches)-1]), "search-ms/most")
			b.ReportMetric(ms(all[len(all)*99/100]), "all-ms/p99")
			b.ReportMetric(float64(len(searches))/float64(b.N), "searches")
			b.ReportMetric(float64(len(searches))/sum.Seconds(), "searches/core-s")
		})
	}
}

// threadTime is the CPU time of this thread, which other processes do not change.
func threadTime(b *testing.B) time.Duration {
	var at unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &at); err != nil {
		b.Fatal(err)
	}
	return time.Duration(at.Nano())
}
