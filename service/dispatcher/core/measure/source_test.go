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

// Workers report their newest transfers with each heartbeat. Probes, repeated reports and a worker alone say nothing about several.
func TestTheStoreIsMeasuredByWorkersTogether(t *testing.T) {
	probe := &pecanv1.StoreTransfer{Elements: 1, Bytes: 1e6, Seconds: 0.1, Probe: true}
	before := map[string][]*pecanv1.StoreTransfer{}
	s := &Store{}
	report := func(second int, worker string, seconds float64) {
		after := []*pecanv1.StoreTransfer{probe, {Elements: 100, Bytes: 5e7, Seconds: seconds}}
		s.Add(time.Duration(second)*time.Second, worker, before[worker], after)
		before[worker] = after
	}
	for i := range 30 {
		report(i, "a", 0.5+float64(i)/1000)
	}
	if s.Uses() != nil {
		t.Errorf("one worker: %+v", s.Uses())
	}
	for i := 30; i < 52; i++ {
		report(i, "a", 0.5+float64(i)/1000)
		report(i, "b", 0.5+float64(i)/1000)
		// A heartbeat without a new transfer.
		report(i, "b", 0.5+float64(i)/1000)
	}
	uses := s.Uses()
	if len(uses) != 2 || uses[0].Workers != 2 || uses[0] != uses[1] || uses[0].Bytes/uses[0].Seconds < 0.9e8 || uses[0].Bytes/uses[0].Seconds > 1.1e8 {
		t.Errorf("two workers of 50 MB/s: %+v", uses)
	}
	for i := 52; i < 80; i++ {
		for _, worker := range []string{"a", "b"} {
			after := []*pecanv1.StoreTransfer{probe, {Elements: 5000, Bytes: 1e6, Seconds: 0.5 + float64(i)/1000}}
			s.Add(time.Duration(i)*time.Second, worker, before[worker], after)
			before[worker] = after
		}
	}
	if now := s.Uses(); now[0].Bytes < uses[0].Bytes || now[1].Elements/now[1].Seconds < 9000 {
		t.Errorf("later, they read small elements: %+v, before %+v", now, uses)
	}
}
