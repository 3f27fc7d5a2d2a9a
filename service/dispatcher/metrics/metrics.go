package metrics

import (
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/store"
)

// maxJobsShown bounds the jobs with their own metrics to the newest ones. maxTenantsShown bounds the tenants to the first
// ones by name. The sums count all.
const (
	maxJobsShown    = 500
	maxTenantsShown = 500
)

// These are the streams whose departure from a worker is measured.
const (
	leftAtIndex = "at_index"
	leftAll     = "all"
)

// Metrics counts what the dispatcher does. Gauges come from its status during a scrape.
type Metrics struct {
	source                               Source
	granted, delivered, elements         prometheus.Counter
	evicted                              prometheus.Counter
	records, snapshots, duplicates       prometheus.Counter
	lost, rejected                       *prometheus.CounterVec
	write                                prometheus.Histogram
	info, jobs, jobInfo, epochs, streams *prometheus.Desc
	workers, clients, datasets           *prometheus.Desc
	bytes, torn, full, orders            *prometheus.Desc
	elementTime, wait, queue, busy       *prometheus.Desc
	provider, desired, wanted            *prometheus.Desc
	providerFailures                     prometheus.Counter
	leave                                *prometheus.HistogramVec
	tenantStreams, tenantWeight          *prometheus.Desc
	tenantQuota, tenantJobs, jobStreams  *prometheus.Desc

	// duplicatesSeen has the reported duplicates by pass.
	mu             sync.Mutex
	duplicatesSeen map[passKey]uint64
}

// Source is the dispatcher as its metrics see it.
type Source interface {
	// StatusNow returns what an operator sees.
	StatusNow() *pecanv1.StatusResponse
	// StoreMetrics returns the size of the store.
	StoreMetrics() store.Metrics
	// DiskFull reports whether the disk has no room for records.
	DiskFull() bool
}

// New returns the metrics of a dispatcher.
func New(source Source) *Metrics {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
	}
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(name, help, labels, nil)
	}
	m := &Metrics{
		source: source, duplicatesSeen: map[passKey]uint64{},
		granted:    counter("pecan_dispatcher_leases_granted_total", "Leases granted to workers."),
		delivered:  counter("pecan_dispatcher_streams_delivered_total", "Streams that were delivered to their last element."),
		elements:   counter("pecan_dispatcher_elements_delivered_total", "Elements of delivered streams."),
		evicted:    counter("pecan_dispatcher_caches_evicted_total", "Caches that were removed: without room below a quota, unused, or by an operator."),
		records:    counter("pecan_dispatcher_records_written_total", "Records made durable."),
		snapshots:  counter("pecan_dispatcher_snapshots_total", "Snapshots that replaced records."),
		duplicates: counter("pecan_dispatcher_duplicates_dropped_total", "Duplicate elements that trainers dropped, as they reported."),
		lost: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "pecan_dispatcher_leases_lost_total",
			Help: "Leases that ended: moved or not needed, died with their worker, or failed on it."}, []string{"cause"}),
		rejected: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "pecan_dispatcher_requests_rejected_total", Help: "Refused requests by reason code."}, []string{"reason"}),
		write: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "pecan_dispatcher_store_write_seconds", Help: "Time of a write to the store with its fsync. Many decisions share one write.",
			Buckets: prometheus.ExponentialBuckets(0.0001, 2, 17)}),
		info:             desc("pecan_dispatcher_info", "Always 1: what this dispatcher is.", "version", "cluster", "durable"),
		jobs:             desc("pecan_dispatcher_jobs", "Jobs."),
		jobInfo:          desc("pecan_dispatcher_job_info", "Always 1: what a job promises, for the newest 500.", "job", "name", "mode", "class", "sharding", "streams", "plan_hash", "durable"),
		epochs:           desc("pecan_dispatcher_epochs_open", "Epochs that are open."),
		streams:          desc("pecan_dispatcher_streams", "Streams of open epochs.", "state"),
		workers:          desc("pecan_dispatcher_workers", "Registered workers.", "state"),
		clients:          desc("pecan_dispatcher_clients", "Trainers' datasets that hold jobs."),
		datasets:         desc("pecan_dispatcher_datasets", "Registered datasets."),
		orders:           desc("pecan_dispatcher_jobs_by_order", "Jobs that asked for another order of their steps, by stage.", "state"),
		elementTime:      desc("pecan_dispatcher_trainer_element_seconds", "Time between two elements that a trainer takes: median of the last seconds.", "job", "client"),
		wait:             desc("pecan_dispatcher_trainer_wait_ratio", "Share of the time that a trainer waits for elements: median of the last seconds.", "job", "client"),
		queue:            desc("pecan_dispatcher_trainer_queue_elements", "Elements that are ready in a trainer: median of the last seconds.", "job", "client"),
		busy:             desc("pecan_dispatcher_worker_busy_ratio", "Mean share of the time in which workers computed elements instead of waiting for room, over the last seconds.", "kind"),
		tenantJobs:       desc("pecan_dispatcher_tenant_jobs", "Jobs of a tenant.", "tenant"),
		tenantStreams:    desc("pecan_dispatcher_tenant_streams", "Streams of a tenant that take slots, and those that wait for a slot.", "tenant", "state"),
		tenantWeight:     desc("pecan_dispatcher_tenant_weight", "Weight of a tenant.", "tenant"),
		tenantQuota:      desc("pecan_dispatcher_tenant_max_slots", "Quota of slots of a tenant; absent without one.", "tenant"),
		jobStreams:       desc("pecan_dispatcher_job_streams_running", "Streams of a job that take slots, for the newest 500.", "job", "tenant", "weight"),
		bytes:            desc("pecan_dispatcher_store_bytes", "Bytes of the store on disk."),
		full:             desc("pecan_dispatcher_store_full", "1 while the disk has less space than its reserve, and nothing new starts."),
		torn:             desc("pecan_dispatcher_store_torn_tails_total", "Torn writes that this process found at its start and ignored."),
		provider:         desc("pecan_dispatcher_provider_workers", "Workers of the provider, by state. Stuck ones are requested or pending and cannot be counted on.", "state"),
		desired:          desc("pecan_dispatcher_provider_desired_workers", "Workers that the provider is asked for."),
		wanted:           desc("pecan_dispatcher_provider_wanted_workers", "Workers that the jobs want now."),
		providerFailures: counter("pecan_dispatcher_provider_failures_total", "Calls of the provider that failed."),
		leave: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "pecan_dispatcher_worker_leave_seconds", Help: "Time in which a leaving worker handed over its streams that can begin at any index, and all of its streams.",
			Buckets: []float64{0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300}}, []string{"streams"}),
	}
	for _, cause := range []string{"moved", "died", "failed"} {
		m.lost.WithLabelValues(cause)
	}
	for _, streams := range []string{leftAtIndex, leftAll} {
		m.leave.WithLabelValues(streams)
	}
	return m
}

type passKey struct {
	client, job string
	epoch       uint64
}
