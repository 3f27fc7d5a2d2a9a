package metrics

import (
	"time"

	"google.golang.org/grpc/codes"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/proto/reason"
)

// Counts are what the records of a decision mean for the metrics.
type Counts struct {
	granted, delivered, elements, evicted uint64
	// lost is indexed by pecanv1.LeaseLost_Cause.
	lost [4]uint64
}

func (c *Counts) Add(record *pecanv1.Record) {
	switch kind := record.GetKind().(type) {
	case *pecanv1.Record_LeasesGranted:
		c.granted += uint64(len(kind.LeasesGranted.GetStreams()))
	case *pecanv1.Record_LeaseLost:
		if cause := int(kind.LeaseLost.GetCause()); cause > 0 && cause < len(c.lost) {
			c.lost[cause]++
		}
	case *pecanv1.Record_StreamsDelivered:
		c.delivered += uint64(len(kind.StreamsDelivered.GetStreams()))
		for _, count := range kind.StreamsDelivered.GetCounts() {
			c.elements += count
		}
	case *pecanv1.Record_CacheEvicted:
		c.evicted++
	case *pecanv1.Record_StreamDelivered:
		c.delivered++
		c.elements += kind.StreamDelivered.GetCount()
	}
}

// Committed counts a write to the store and its time.
func (m *Metrics) Committed(records int, snapshot bool, took time.Duration) {
	if records > 0 {
		m.records.Add(float64(records))
		m.write.Observe(took.Seconds())
	}
	if snapshot {
		m.snapshots.Inc()
	}
}

// Decided counts a decision that became durable.
func (m *Metrics) Decided(f Counts) {
	m.granted.Add(float64(f.granted))
	m.delivered.Add(float64(f.delivered))
	m.elements.Add(float64(f.elements))
	m.evicted.Add(float64(f.evicted))
	for cause, n := range f.lost {
		if n > 0 {
			m.lost.WithLabelValues(pecanv1.Word(pecanv1.LeaseLost_Cause(cause), "")).Add(float64(n))
		}
	}
}

// Left observes how long a planned departure took. It has two times: until the worker had no stream that can begin at any
// index, if it had one, and until its goodbye.
func (m *Metrics) Left(atIndex time.Duration, hadAtIndex bool, all time.Duration) {
	if hadAtIndex {
		m.leave.WithLabelValues(leftAtIndex).Observe(atIndex.Seconds())
	}
	m.leave.WithLabelValues(leftAll).Observe(all.Seconds())
}

// ProviderFailed counts a failed call of the provider of workers.
func (m *Metrics) ProviderFailed() { m.providerFailures.Inc() }

// Refused counts a refused request. A reason code outside the list comes from a worker's report. Such codes share
// one label, because their number is unbounded.
func (m *Metrics) Refused(why reason.Reason) {
	if reason.Code(why) == codes.Unknown {
		why = "OTHER"
	}
	m.rejected.WithLabelValues(string(why)).Inc()
}
