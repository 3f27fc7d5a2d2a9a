package sim

import (
	"testing"
	"time"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
)

// G10: a trainer of a shared job stops reading and lives on, with begun streams and elements that have arrived. The other
// trainer reads everything that the first one has not taken. When the first one reads again, its pass ends.
func TestATrainerThatStopsReadingHoldsNothingBack(t *testing.T) {
	for name, mode := range map[string]pecanv1.Mode{"exactly once": pecanv1.Mode_MODE_EXACTLY_ONCE, "at most once": pecanv1.Mode_MODE_AT_MOST_ONCE} {
		t.Run(name, func(t *testing.T) {
			simulate(t, options{seed: 1}, func(c *cluster) {
				const stop = 20 * time.Minute
				want := wanted{dataset: batches, mode: mode, name: "team", pace: 20 * time.Millisecond, ahead: 20_000, checksum: true}
				stopped := want
				stopped.stopsAt, stopped.stopsFor = 3, stop
				first, second := c.join(0, want), c.join(1, stopped)
				waitSecond := second.reading(1)
				second.after(stopped.stopsAt)
				waitFirst := first.reading(1)
				waitFirst()
				if took := time.Since(c.began); took > stop/2 {
					t.Errorf("the first trainer read its pass in %v", took)
				}
				if n := second.taken.Load(); n != int64(stopped.stopsAt) {
					t.Errorf("the second trainer has taken %d elements", n)
				}
				waitSecond()
				c.ledger.audit(batches, exactly, 1)
			})
		})
	}
}
