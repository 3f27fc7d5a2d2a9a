package worker

import (
	"os"
	"strconv"
	"strings"
	"time"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/worker/window"
	"golang.org/x/sys/unix"
)

// heartbeat returns the load of the worker.
func (w *Worker) heartbeat() *pecanv1.WorkerHeartbeat {
	computed, blocked := window.Times()
	_, _, sent := w.server.Load()
	return &pecanv1.WorkerHeartbeat{
		UptimeS: time.Since(w.begun).Seconds(), ComputedS: computed.Seconds(), BlockedS: blocked.Seconds(), SentBytes: sent, Host: w.host.Report(),
		CpuS: cpuSeconds(), ResidentBytes: residentBytes(), Leaving: w.departing.Load(), Cache: w.streams.Caches.Metrics(), Store: w.streams.Caches.Rates(), Streams: pecanv1.PackLoads(w.streams.Loads()),
	}
}

func cpuSeconds() float64 {
	var usage unix.Rusage
	if unix.Getrusage(unix.RUSAGE_SELF, &usage) != nil {
		return 0
	}
	return float64(usage.Utime.Nano()+usage.Stime.Nano()) / 1e9
}

func residentBytes() int64 {
	raw, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		return 0
	}
	fields := strings.Fields(string(raw))
	if len(fields) < 2 {
		return 0
	}
	pages, err := strconv.ParseInt(fields[1], 10, 64)
	if err != nil {
		return 0
	}
	return pages * int64(os.Getpagesize())
}
