package metrics

import (
	"strconv"
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
)

// Describe implements prometheus.Collector.
func (m *Metrics) Describe(out chan<- *prometheus.Desc) {
	for _, c := range m.counters() {
		c.Describe(out)
	}
	for _, desc := range []*prometheus.Desc{m.info, m.jobs, m.jobInfo, m.epochs, m.streams, m.workers, m.clients, m.datasets, m.bytes, m.torn, m.full, m.orders, m.elementTime, m.wait, m.queue, m.busy,
		m.tenantJobs, m.tenantStreams, m.tenantWeight, m.tenantQuota, m.jobStreams, m.provider, m.desired, m.wanted} {
		out <- desc
	}
}

func (m *Metrics) counters() []prometheus.Collector {
	return []prometheus.Collector{m.granted, m.delivered, m.elements, m.evicted, m.records, m.snapshots, m.duplicates, m.lost, m.rejected, m.write, m.leave, m.providerFailures}
}

// Collect implements prometheus.Collector.
func (m *Metrics) Collect(out chan<- prometheus.Metric) {
	status := m.source.StatusNow()
	m.countDuplicates(status)
	for _, c := range m.counters() {
		c.Collect(out)
	}
	gauge := func(desc *prometheus.Desc, value float64, labels ...string) {
		out <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, value, labels...)
	}
	durable := strconv.FormatBool(status.WorkDir != "")
	gauge(m.info, 1, status.Version, status.ClusterId, durable)
	gauge(m.jobs, float64(len(status.Jobs)))
	gauge(m.clients, float64(status.Clients))
	gauge(m.datasets, float64(len(status.Datasets)))
	size := m.source.StoreMetrics()
	gauge(m.bytes, float64(size.Bytes))
	out <- prometheus.MustNewConstMetric(m.torn, prometheus.CounterValue, float64(size.TornTails))
	full := 0.0
	if m.source.DiskFull() {
		full = 1
	}
	gauge(m.full, full)
	workers := map[string]int{"connected": 0, "suspect": 0, "leaving": 0, "away": 0}
	busy, measured := map[string]float64{}, map[string]float64{}
	for _, worker := range status.Workers {
		workers[worker.State]++
		busy[worker.Kind] += worker.Busy
		measured[worker.Kind]++
	}
	for kind, n := range measured {
		gauge(m.busy, busy[kind]/n, kind)
	}
	for state, n := range workers {
		gauge(m.workers, float64(n), state)
	}
	if p := status.Provider; p != nil {
		for state, n := range map[string]int{"requested": int(p.Requested), "pending": int(p.Pending), "ready": int(p.Ready), "leaving": len(p.Leaving), "stuck": int(p.Stuck)} {
			gauge(m.provider, float64(n), state)
		}
		gauge(m.desired, float64(p.Desired))
		gauge(m.wanted, float64(p.Wanted))
	}
	orders := map[string]int{"off": 0, "measuring": 0, "proposed": 0, "kept": 0, "refused": 0, "piloted": 0, "adopted": 0, "rolled back": 0}
	for _, job := range status.Jobs {
		if job.Order != nil {
			orders[job.Order.State]++
		}
	}
	for state, n := range orders {
		gauge(m.orders, float64(n), strings.ReplaceAll(state, " ", "_"))
	}
	for _, t := range status.Tenants[:min(len(status.Tenants), maxTenantsShown)] {
		gauge(m.tenantJobs, float64(t.Jobs), t.Name)
		gauge(m.tenantStreams, float64(t.Running), t.Name, "running")
		gauge(m.tenantStreams, float64(t.Waiting), t.Name, "waiting")
		gauge(m.tenantWeight, t.Weight, t.Name)
		if t.MaxSlots > 0 {
			gauge(m.tenantQuota, float64(t.MaxSlots), t.Name)
		}
	}
	var open, done, running, waiting int
	for i, job := range status.Jobs {
		for _, epoch := range job.Epochs {
			if n := epoch.StreamsDone + epoch.StreamsRunning + epoch.StreamsWaiting; n > 0 {
				open++
				done, running, waiting = done+int(epoch.StreamsDone), running+int(epoch.StreamsRunning), waiting+int(epoch.StreamsWaiting)
			}
		}
		if i >= len(status.Jobs)-maxJobsShown {
			for _, trainer := range job.Consumers {
				gauge(m.elementTime, trainer.ElementS, job.JobId, trainer.ClientId)
				gauge(m.wait, trainer.Wait, job.JobId, trainer.ClientId)
				gauge(m.queue, trainer.Queue, job.JobId, trainer.ClientId)
			}
			gauge(m.jobStreams, float64(job.Running), job.JobId, job.Options.EffectiveTenant(), strconv.FormatFloat(job.Options.EffectiveWeight(), 'g', -1, 64))
			gauge(m.jobInfo, 1, job.JobId, job.Name, pecanv1.Word(job.Options.GetMode(), "MODE_"),
				pecanv1.Word(job.Plan.GetDeterminism(), "DETERMINISM_CLASS_"), pecanv1.Word(job.Options.GetSharding(), "SHARDING_"),
				strconv.Itoa(int(job.Plan.GetNumStreams())), job.Plan.GetHash(), durable)
		}
	}
	gauge(m.epochs, float64(open))
	gauge(m.streams, float64(done), "delivered")
	gauge(m.streams, float64(running), "leased")
	gauge(m.streams, float64(waiting), "waiting")
}

// countDuplicates adds the duplicates reported since the last scrape. Closed passes are dropped.
func (m *Metrics) countDuplicates(status *pecanv1.StatusResponse) {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := map[passKey]uint64{}
	for _, job := range status.Jobs {
		for _, epoch := range job.Epochs {
			for _, pass := range epoch.Passes {
				key := passKey{pass.ClientId, job.JobId, epoch.Epoch}
				if now[key] = max(pass.DuplicatesDropped, m.duplicatesSeen[key]); now[key] > m.duplicatesSeen[key] {
					m.duplicates.Add(float64(now[key] - m.duplicatesSeen[key]))
				}
			}
		}
	}
	m.duplicatesSeen = now
}
