package schedule_test

import (
	"fmt"
	"testing"

	"github.com/pecan-ml/pecan/service/dispatcher/core/schedule"
)

// BenchmarkIdleLocalWorkers ends a stream and leases the next one, on 10,000 busy workers, beside idle local workers of other
// trainers. They must not make a lease slower.
func BenchmarkIdleLocalWorkers(b *testing.B) {
	for _, local := range []int{0, 100, 4000} {
		b.Run(fmt.Sprint(local), func(b *testing.B) {
			m := newMarket(b, 1, 10_000, 4, nil)
			for i := range local {
				id := fmt.Sprint("local", i)
				m.schedule.SetWorker(schedule.Worker{ID: id, Usable: true, MaxStreams: 4, Order: uint64(10_000 + i), Position: -1, Local: true})
			}
			epoch := m.add("j", "", 1, nil).Epochs[0]
			m.schedule.Run(false)
			stream := uint32(0)
			for b.Loop() {
				m.end(epoch, stream)
				m.schedule.Run(false)
				stream++
				if stream == 19_000 {
					b.Fatal("the epoch has too few streams")
				}
			}
			if len(m.granted) != 40_000+int(stream) {
				b.Errorf("%d leases after %d streams have ended", len(m.granted), stream)
			}
		})
	}
}
