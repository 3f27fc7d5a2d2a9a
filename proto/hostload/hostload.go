// Package hostload measures how busy this host is. Clients and workers report it with their heartbeats.
//
// The kernel publishes the number of runnable threads as of now, so a Sampler looks at it ten times per second. The other
// figures follow from totals: two looks give the mean between them.
package hostload

import (
	"context"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"time"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
)

const (
	samplePeriod = 100 * time.Millisecond
	// shortest is the least time between two reports with new figures.
	shortest = 500 * time.Millisecond
)

// Sampler measures the load of this host.
type Sampler struct {
	hostID string
	// root is the directory of the kernel's files.
	root string

	mu       sync.Mutex
	runnable float64
	samples  int
	at       time.Time
	pressure float64
	network  float64
	last     *pecanv1.HostLoad
}

// New returns a sampler for the host with an id. Without an id nobody can tell whose load it is, and Report returns nil.
func New(hostID string) *Sampler {
	s := &Sampler{hostID: hostID, root: "/proc/"}
	s.at, s.network = time.Now(), s.bytes()
	s.pressure, _ = s.stalled()
	return s
}

// Run samples until ctx ends.
func (s *Sampler) Run(ctx context.Context) {
	ticker := time.NewTicker(samplePeriod)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			s.sample()
		}
	}
}

func (s *Sampler) sample() {
	// The thread that reads is one of those that run.
	running, ok := parseRunnable(s.read("loadavg"))
	if !ok {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.runnable += max(0, running-1)
	s.samples++
}

// Report returns the load since the last report. A report that follows the last one at once repeats it. It is nil before
// the first sample.
func (s *Sampler) Report() *pecanv1.HostLoad {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	elapsed := now.Sub(s.at)
	if s.hostID == "" || elapsed < shortest || s.samples == 0 {
		return s.last
	}
	cores := runtime.NumCPU()
	load := &pecanv1.HostLoad{HostId: s.hostID, Cores: int32(cores), Load: s.runnable / float64(s.samples) / float64(cores), Memory: parseMemory(s.read("meminfo"))}
	stalled, known := s.stalled()
	if load.PressureKnown = known; known {
		load.Pressure = min(max(stalled-s.pressure, 0)/elapsed.Seconds(), 1)
	}
	bytes := s.bytes()
	load.NetworkBytesS = max(bytes-s.network, 0) / elapsed.Seconds()
	s.at, s.pressure, s.network, s.runnable, s.samples, s.last = now, stalled, bytes, 0, 0, load
	return load
}

// stalled returns the seconds in which some thread waited for a processor.
func (s *Sampler) stalled() (seconds float64, known bool) {
	return parseStalled(s.read("pressure/cpu"))
}

func (s *Sampler) bytes() float64 { return parseBytes(s.read("net/dev")) }

func (s *Sampler) read(name string) string {
	text, err := os.ReadFile(s.root + name)
	if err != nil {
		return ""
	}
	return string(text)
}

// parseRunnable reads "0.20 0.18 0.12 1/80 11206": one of 80 threads is runnable.
func parseRunnable(text string) (float64, bool) {
	fields := strings.Fields(text)
	if len(fields) < 4 {
		return 0, false
	}
	running, _, found := strings.Cut(fields[3], "/")
	n, err := strconv.ParseUint(running, 10, 32)
	return float64(n), found && err == nil
}

// parseStalled reads the total of "some avg10=0.00 avg60=0.00 avg300=0.00 total=1234", in microseconds.
func parseStalled(text string) (seconds float64, known bool) {
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		if len(fields) == 0 || fields[0] != "some" {
			continue
		}
		for _, field := range fields[1:] {
			if total, found := strings.CutPrefix(field, "total="); found {
				n, err := strconv.ParseUint(total, 10, 64)
				return float64(n) / 1e6, err == nil
			}
		}
	}
	return 0, false
}

// parseMemory returns the used share of the memory.
func parseMemory(text string) float64 {
	figures := map[string]float64{}
	for line := range strings.Lines(text) {
		if fields := strings.Fields(line); len(fields) >= 2 {
			figures[fields[0]], _ = strconv.ParseFloat(fields[1], 64)
		}
	}
	total, available := figures["MemTotal:"], figures["MemAvailable:"]
	if total <= 0 {
		return 0
	}
	return min(max(1-available/total, 0), 1)
}

// parseBytes sums the received and sent bytes of all interfaces but loopback.
func parseBytes(text string) (sum float64) {
	for line := range strings.Lines(text) {
		name, figures, found := strings.Cut(line, ":")
		fields := strings.Fields(figures)
		if !found || strings.TrimSpace(name) == "lo" || len(fields) < 9 {
			continue
		}
		received, err := strconv.ParseFloat(fields[0], 64)
		sent, failed := strconv.ParseFloat(fields[8], 64)
		if err == nil && failed == nil {
			sum += received + sent
		}
	}
	return sum
}
