package measure

import (
	"fmt"
	"testing"
	"time"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
)

// Workers report running totals, each at its own time.
func TestReadingIsMeasuredByTheNumberOfWorkers(t *testing.T) {
	s, workers := &Source{}, make([]Worker, 8)
	report := func(now time.Duration, number int, elements uint64, each float64) {
		read := workers[number].Read("j", []*pecanv1.NodeMetrics{
			{Node: "read", Op: "TFRecordDatasetV2", Elements: elements, SelfCpuS: float64(elements) * each}, {Node: "map", Op: "MapDataset", SelfCpuS: 0.01 * float64(elements)},
		})
		s.Add(now, fmt.Sprint(number), read)
	}
	// The first report counts for nothing, because it may be of any time.
	for i := range 12 {
		report(time.Duration(i)*time.Second, 0, uint64(5000+100*i), 0.001)
	}
	if uses := s.Uses(); len(uses) != 1 || uses[0].Workers != 1 || !near(uses[0].Elements, 1000) || !near(uses[0].Seconds, 1) || !near(uses[0].All, 11) || !near(uses[0].PerSecond, 100) {
		t.Fatalf("one worker: %+v", uses)
	}
	for i := 12; i < 24; i++ {
		for n := range workers {
			report(time.Duration(i)*time.Second, n, uint64(6100+50*(i-11)), 0.001)
		}
	}
	uses := s.Uses()
	if len(uses) != 2 || uses[1].Workers != 8 || uses[1].PerSecond < 300 || uses[1].PerSecond > 450 {
		t.Fatalf("eight workers of 50 elements per second: %+v", uses)
	}
	if new(Source).Uses() != nil || (*Source)(nil).Uses() != nil {
		t.Error("something is measured before anything is read")
	}
}

func TestTotalsThatGoBackBeginAgain(t *testing.T) {
	w := &Worker{}
	node := func(elements uint64) []*pecanv1.NodeMetrics {
		return []*pecanv1.NodeMetrics{{Op: "TextLineDataset", Elements: elements, SelfCpuS: float64(elements)}}
	}
	for i, step := range []struct{ total, since uint64 }{{50, 0}, {70, 20}, {10, 0}, {15, 5}} {
		if read := w.Read("j", node(step.total)); read.Elements != float64(step.since) {
			t.Errorf("report %d: %v elements, want %d", i, read.Elements, step.since)
		}
	}
}
