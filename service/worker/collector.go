package worker

import (
	"github.com/pecan-ml/pecan/service/worker/window"
	"github.com/prometheus/client_golang/prometheus"
)

// collector reads a worker's metrics on each scrape.
type collector struct {
	w                                                 *Worker
	info, session, readers, streams                   *prometheus.Desc
	window, buffered, produced, sent, bytes           *prometheus.Desc
	failedElements, failedStreams, windowsLimit       *prometheus.Desc
	tried, triedCPU, runs                             *prometheus.Desc
	storeBusy, storeBytes, storeWaited, storeWritable *prometheus.Desc
}

func newCollector(w *Worker) *collector {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(name, help, labels, nil)
	}
	return &collector{
		w:              w,
		info:           desc("pecan_worker_info", "Always 1: what this worker is.", "worker", "address", "version", "kind"),
		session:        desc("pecan_worker_session_up", "1 while there is a session with the dispatcher, else 0."),
		readers:        desc("pecan_worker_connections", "Open connections of readers."),
		streams:        desc("pecan_worker_streams", "Streams that are held, by state: running, or produced and not yet read to the end.", "state"),
		window:         desc("pecan_worker_window_bytes", "Bytes of elements that are ready."),
		windowsLimit:   desc("pecan_worker_window_limit_bytes", "Bytes of elements that may be ready at once (--window-bytes)."),
		buffered:       desc("pecan_worker_graph_buffer_bytes", "Bytes in tf.data's buffers inside the running graphs."),
		produced:       desc("pecan_worker_elements_produced_total", "Elements produced, including those that are recomputed."),
		sent:           desc("pecan_worker_elements_sent_total", "Elements sent to readers."),
		bytes:          desc("pecan_worker_sent_bytes_total", "Bytes of elements sent to readers, before compression, through sockets and shared memory."),
		failedElements: desc("pecan_worker_element_failures_total", "Elements that failed: an error was sent in their place."),
		failedStreams:  desc("pecan_worker_stream_failures_total", "Streams that failed as a whole."),
		tried:          desc("pecan_worker_orders_tried_total", "Trials of another order of a dataset's steps, by outcome.", "outcome"),
		triedCPU:       desc("pecan_worker_order_trials_cpu_seconds_total", "CPU time of order trials, in seconds."),
		storeBusy:      desc("pecan_worker_cache_seconds_total", "Time in which the cache directory was read or written, in seconds.", "direction"),
		storeBytes:     desc("pecan_worker_cache_bytes_total", "Bytes of segments that were read or written.", "direction"),
		storeWaited:    desc("pecan_worker_cache_write_wait_seconds_total", "Time that streams waited for --cache-write-rate, in seconds."),
		storeWritable:  desc("pecan_worker_cache_writable", "1 if the cache directory can be written, 0 after several failures in a row."),
		runs:           desc("pecan_worker_runs_seconds_total", "Time of the runs, in seconds: computing elements, or blocked without room for more.", "state"),
	}
}

// Describe implements prometheus.Collector.
func (c *collector) Describe(out chan<- *prometheus.Desc) {
	for _, desc := range []*prometheus.Desc{
		c.info, c.session, c.readers, c.streams, c.window, c.windowsLimit, c.buffered, c.produced, c.sent, c.bytes, c.failedElements, c.failedStreams,
		c.tried, c.triedCPU, c.runs, c.storeBusy, c.storeBytes, c.storeWaited, c.storeWritable,
	} {
		out <- desc
	}
}

// Collect implements prometheus.Collector.
func (c *collector) Collect(out chan<- prometheus.Metric) {
	gauge := func(desc *prometheus.Desc, value float64, labels ...string) {
		out <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, value, labels...)
	}
	counter := func(desc *prometheus.Desc, value uint64) {
		out <- prometheus.MustNewConstMetric(desc, prometheus.CounterValue, float64(value))
	}
	w := c.w
	gauge(c.info, 1, w.identity.ID(), w.identity.Address, w.config.Version, w.config.Kind)
	up := 0.0
	if w.session.isUp() {
		up = 1
	}
	gauge(c.session, up)
	connections, sentElements, sentBytes := w.server.Load()
	gauge(c.readers, float64(connections))
	load := w.streams.Load()
	gauge(c.streams, float64(load.Running), "running")
	gauge(c.streams, float64(max(0, load.Held-load.Running)), "produced")
	gauge(c.window, float64(load.WindowBytes))
	gauge(c.windowsLimit, float64(w.config.WindowBytes))
	gauge(c.buffered, float64(load.BufferedBytes))
	counter(c.produced, load.Produced)
	counter(c.sent, sentElements)
	counter(c.bytes, sentBytes)
	counter(c.failedElements, load.FailedElements)
	counter(c.failedStreams, load.FailedStreams)
	total := func(desc *prometheus.Desc, value float64, labels ...string) {
		out <- prometheus.MustNewConstMetric(desc, prometheus.CounterValue, value, labels...)
	}
	passed, refused, spent := w.trials.Load()
	total(c.tried, float64(refused), "refused")
	total(c.tried, float64(passed), "passed")
	total(c.triedCPU, spent.Seconds())
	computed, blocked := window.Times()
	total(c.runs, computed.Seconds(), "computing")
	total(c.runs, blocked.Seconds(), "blocked")
	if caches := w.streams.Caches; caches != nil {
		read, written, writable := caches.Usage()
		total(c.storeBusy, read.Seconds(), "read")
		total(c.storeBusy, written.Seconds(), "write")
		total(c.storeWaited, caches.WriteWaited().Seconds())
		counts := caches.Metrics()
		total(c.storeBytes, float64(counts.GetBytesRead()), "read")
		total(c.storeBytes, float64(counts.GetBytesWritten()), "write")
		up := 0.0
		if writable {
			up = 1
		}
		gauge(c.storeWritable, up)
	}
}
