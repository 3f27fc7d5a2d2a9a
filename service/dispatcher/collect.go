package dispatcher

import (
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/codes"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/proto/reason"
)

// mostJobsShown bounds the jobs that have metrics of their own: the newest ones. All count in the sums.
const mostJobsShown = 500

// metrics count what the dispatcher does. What it has is read from its status when somebody asks.
type metrics struct {
	d                                    *Dispatcher
	granted, delivered, elements         prometheus.Counter
	records, snapshots, duplicates       prometheus.Counter
	lost, rejected                       *prometheus.CounterVec
	write                                prometheus.Histogram
	info, jobs, jobInfo, epochs, streams *prometheus.Desc
	workers, clients, datasets           *prometheus.Desc
	bytes, torn, full, orders            *prometheus.Desc

	// told are the duplicates that trainers told of the passes they read.
	mu   sync.Mutex
	told map[toldKey]uint64
}

type toldKey struct {
	client, job string
	epoch       uint64
}

func newMetrics(d *Dispatcher) *metrics {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
	}
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(name, help, labels, nil)
	}
	m := &metrics{
		d: d, told: map[toldKey]uint64{},
		granted:    counter("pecan_dispatcher_leases_granted_total", "Leases given to workers."),
		delivered:  counter("pecan_dispatcher_streams_delivered_total", "Streams of which a trainer has the last element."),
		elements:   counter("pecan_dispatcher_elements_delivered_total", "Elements of delivered streams."),
		records:    counter("pecan_dispatcher_records_written_total", "Records made durable."),
		snapshots:  counter("pecan_dispatcher_snapshots_total", "Snapshots that replaced records."),
		duplicates: counter("pecan_dispatcher_duplicates_dropped_total", "Elements that trainers had already and dropped, as they told."),
		lost: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "pecan_dispatcher_leases_lost_total",
			Help: "Leases that ended: moved on purpose or not needed, died with their worker, failed on it."}, []string{"cause"}),
		rejected: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "pecan_dispatcher_requests_rejected_total", Help: "Requests refused, by the reason word."}, []string{"reason"}),
		write: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "pecan_dispatcher_store_write_seconds", Help: "Time of a write to the store with its fsync; many decisions share one.",
			Buckets: prometheus.ExponentialBuckets(0.0001, 2, 17)}),
		info:     desc("pecan_dispatcher_info", "Always 1: what this dispatcher is.", "version", "cluster", "durable"),
		jobs:     desc("pecan_dispatcher_jobs", "Jobs."),
		jobInfo:  desc("pecan_dispatcher_job_info", "Always 1: what a job promises, for the newest 500.", "job", "name", "mode", "class", "sharding", "streams", "plan_hash", "durable"),
		epochs:   desc("pecan_dispatcher_epochs_open", "Epochs that are open."),
		streams:  desc("pecan_dispatcher_streams", "Streams of open epochs.", "state"),
		workers:  desc("pecan_dispatcher_workers", "Registered workers.", "state"),
		clients:  desc("pecan_dispatcher_clients", "Trainers' datasets that hold jobs."),
		datasets: desc("pecan_dispatcher_datasets", "Registered datasets."),
		orders:   desc("pecan_dispatcher_jobs_by_order", "Jobs that asked for another order of their steps, by how far that is.", "state"),
		bytes:    desc("pecan_dispatcher_store_bytes", "Bytes of the store on disk."),
		full:     desc("pecan_dispatcher_store_full", "1 while the disk has less room than is kept in reserve, and nothing new is begun."),
		torn:     desc("pecan_dispatcher_store_torn_tails_total", "Torn writes that this process found when it started, and left out."),
	}
	for _, cause := range []string{"moved", "died", "failed"} {
		m.lost.WithLabelValues(cause)
	}
	return m
}

// Describe implements prometheus.Collector.
func (m *metrics) Describe(out chan<- *prometheus.Desc) {
	for _, c := range m.counted() {
		c.Describe(out)
	}
	for _, desc := range []*prometheus.Desc{m.info, m.jobs, m.jobInfo, m.epochs, m.streams, m.workers, m.clients, m.datasets, m.bytes, m.torn, m.full, m.orders} {
		out <- desc
	}
}

func (m *metrics) counted() []prometheus.Collector {
	return []prometheus.Collector{m.granted, m.delivered, m.elements, m.records, m.snapshots, m.duplicates, m.lost, m.rejected, m.write}
}

// Collect implements prometheus.Collector.
func (m *metrics) Collect(out chan<- prometheus.Metric) {
	status := m.d.status()
	m.listen(status)
	for _, c := range m.counted() {
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
	figures := m.d.deps.Store.Figures()
	gauge(m.bytes, float64(figures.Bytes))
	out <- prometheus.MustNewConstMetric(m.torn, prometheus.CounterValue, float64(figures.TornTails))
	m.isFull(out)
	workers := map[string]int{"connected": 0, "suspect": 0, "away": 0}
	for _, worker := range status.Workers {
		workers[worker.State]++
	}
	for state, n := range workers {
		gauge(m.workers, float64(n), state)
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
	var open, done, running, waiting int
	for i, job := range status.Jobs {
		for _, epoch := range job.Epochs {
			if n := epoch.StreamsDone + epoch.StreamsRunning + epoch.StreamsWaiting; n > 0 {
				open++
				done, running, waiting = done+int(epoch.StreamsDone), running+int(epoch.StreamsRunning), waiting+int(epoch.StreamsWaiting)
			}
		}
		if i >= len(status.Jobs)-mostJobsShown {
			gauge(m.jobInfo, 1, job.JobId, job.Name, word(job.Options.GetMode().String(), "MODE_"),
				word(job.Plan.GetDeterminism().String(), "DETERMINISM_CLASS_"), word(job.Options.GetSharding().String(), "SHARDING_"),
				strconv.Itoa(int(job.Plan.GetNumStreams())), job.Plan.GetHash(), durable)
		}
	}
	gauge(m.epochs, float64(open))
	gauge(m.streams, float64(done), "delivered")
	gauge(m.streams, float64(running), "leased")
	gauge(m.streams, float64(waiting), "waiting")
}

func word(enum, prefix string) string { return strings.ToLower(strings.TrimPrefix(enum, prefix)) }

// listen adds what trainers told of duplicates since it was asked last. Passes that are over are forgotten.
func (m *metrics) listen(status *pecanv1.StatusResponse) {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := map[toldKey]uint64{}
	for _, job := range status.Jobs {
		for _, epoch := range job.Epochs {
			for _, pass := range epoch.Passes {
				key := toldKey{pass.ClientId, job.JobId, epoch.Epoch}
				if now[key] = max(pass.DuplicatesDropped, m.told[key]); now[key] > m.told[key] {
					m.duplicates.Add(float64(now[key] - m.told[key]))
				}
			}
		}
	}
	m.told = now
}

// committed counts decisions that became durable, and the time that took.
func (m *metrics) committed(entries []*entry, records int, snapshot bool, took time.Duration) {
	if records > 0 {
		m.records.Add(float64(records))
		m.write.Observe(took.Seconds())
	}
	if snapshot {
		m.snapshots.Inc()
	}
	for _, e := range entries {
		m.granted.Add(float64(e.figures.granted))
		m.delivered.Add(float64(e.figures.delivered))
		m.elements.Add(float64(e.figures.elements))
		for cause, n := range e.figures.lost {
			if n > 0 {
				m.lost.WithLabelValues(word(pecanv1.LeaseLost_Cause(cause).String(), "")).Add(float64(n))
			}
		}
	}
}

// refused counts a request. A word that is not of the list came with the report of a worker, and there may be any number of those.
func (m *metrics) refused(why reason.Reason) {
	if reason.Code(why) == codes.Unknown {
		why = "OTHER"
	}
	m.rejected.WithLabelValues(string(why)).Inc()
}

// figures are what records of a decision mean for the metrics.
type figures struct {
	granted, delivered, elements uint64
	// lost by pecanv1.LeaseLost_Cause.
	lost [4]uint64
}

func (f *figures) count(record *pecanv1.Record) {
	switch kind := record.GetKind().(type) {
	case *pecanv1.Record_LeaseGranted:
		f.granted++
	case *pecanv1.Record_LeaseLost:
		if cause := int(kind.LeaseLost.GetCause()); cause > 0 && cause < len(f.lost) {
			f.lost[cause]++
		}
	case *pecanv1.Record_StreamDelivered:
		f.delivered++
		f.elements += kind.StreamDelivered.GetCount()
	}
}
