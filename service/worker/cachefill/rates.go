package cachefill

import (
	"context"
	"errors"
	"math"
	"math/bits"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/cache"
)

const (
	// keptSamples bounds the samples of production. leastSampleBytes is the least number of bytes of a sample.
	keptSamples      = 8
	leastSampleBytes = 1 << 20
	// mostFailures is how many segments in a row fail before the directory counts as not writable.
	mostFailures = 3
)

// transfers measures how fast a directory is read, or written. The zero value is ready. It is safe for concurrent use.
type transfers struct {
	mu sync.Mutex
	// active counts the transfers in progress, since began.
	active int
	began  time.Time
	// seconds is the time in which at least one transfer ran. work is the sum of the times of all transfers. Both count
	// since the last sample. total is the time in which at least one transfer ran, since the start.
	seconds, work, total time.Duration
	elements, bytes      uint64
	probes, samples      []*pecanv1.StoreTransfer
}

// begin begins a transfer. The function that it returns ends the transfer.
func (t *transfers) begin() (end func(elements, bytes int)) {
	start := time.Now()
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.active++; t.active == 1 {
		t.began = start
	}
	return func(elements, bytes int) {
		now := time.Now()
		t.mu.Lock()
		defer t.mu.Unlock()
		if t.active--; t.active == 0 {
			t.seconds += now.Sub(t.began)
			t.total += now.Sub(t.began)
		}
		t.work += now.Sub(start)
		t.elements, t.bytes = t.elements+uint64(elements), t.bytes+uint64(bytes)
	}
}

// sampled returns the samples. If enough was transferred since the last sample, it adds one first.
func (t *transfers) sampled() []*pecanv1.StoreTransfer {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.active > 0 {
		now := time.Now()
		t.seconds, t.total, t.began = t.seconds+now.Sub(t.began), t.total+now.Sub(t.began), now
	}
	if t.bytes >= leastSampleBytes && t.seconds > 0 {
		t.samples = append(t.samples, &pecanv1.StoreTransfer{Elements: t.elements, Bytes: t.bytes, Seconds: t.seconds.Seconds(), WorkS: t.work.Seconds()})
		t.samples = t.samples[max(0, len(t.samples)-keptSamples):]
		t.seconds, t.work, t.elements, t.bytes = 0, 0, 0, 0
	}
	return slices.Concat(t.probes, t.samples)
}

// probed replaces the samples of earlier probes.
func (t *transfers) probed(samples []*pecanv1.StoreTransfer) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.probes = samples
}

// rate returns the bytes per second of the newest sample of production. Before there is one, it returns the rate of the
// largest probe, and 0 before the first probe.
func (t *transfers) rate() float64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	all := slices.Concat(t.probes, t.samples)
	if len(all) == 0 {
		return 0
	}
	newest := all[len(all)-1]
	return float64(newest.GetBytes()) / newest.GetSeconds()
}

// busy returns for how long transfers were in progress since the start.
func (t *transfers) busy() time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.total
}

// health says whether the directory can be written.
type health struct {
	mu sync.Mutex
	// failures counts the writes that have failed in a row. problem is why nothing can be written; empty if it can.
	// noAnswer is set if it is that the directory does not answer in time.
	failures int
	problem  string
	noAnswer bool
	// free is how many bytes may still be written; negative if it is not known.
	free int64
}

// succeeded notes that a file with so many bytes was written and stays. They are not free any more.
func (h *health) succeeded(bytes int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.failures, h.problem, h.noAnswer = 0, "", false
	if h.free > 0 {
		h.free = max(h.free-bytes, 0)
	}
}

// failed notes that a call failed. The end of a stream that waits for a rate limit is no failure of the directory.
func (h *health) failed(err error) {
	if errors.Is(err, context.Canceled) {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	noAnswer := errors.Is(err, cache.ErrNoAnswer)
	if h.failures++; h.failures >= mostFailures || noAnswer {
		h.problem, h.noAnswer = err.Error(), h.noAnswer || noAnswer
	}
}

// broken notes that the directory could not be measured.
func (h *health) broken(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.failures, h.problem, h.noAnswer = mostFailures, err.Error(), errors.Is(err, cache.ErrNoAnswer)
}

func (h *health) setFree(bytes int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.free = bytes
}

// answers returns whether the directory has answered since the last call that took too long. A probe finds it.
func (h *health) answers() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return !h.noAnswer
}

func (h *health) state() (problem string, free int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.problem, h.free
}

// Rates returns how fast the directory is; nil without a directory, and before it was measured.
func (d *Directory) Rates() *pecanv1.StoreRates {
	if d == nil {
		return nil
	}
	rates := &pecanv1.StoreRates{Reads: d.reading.sampled(), Writes: d.writing.sampled()}
	if rates.Problem, rates.FreeBytes = d.health.state(); rates.Problem == "" && len(rates.Reads) == 0 && len(rates.Writes) == 0 {
		return nil
	}
	return rates
}

// Usage returns for how long the directory was read and written, and whether it can be written now.
func (d *Directory) Usage() (read, written time.Duration, writable bool) {
	problem, _ := d.health.state()
	return d.reading.busy(), d.writing.busy(), problem == ""
}

// compressAbove returns the speed from which on a compressor pays. It is the speed at which the directory is read, because
// one epoch writes what each later epoch reads.
func (d *Directory) compressAbove() float64 {
	if d.Compress {
		return 0
	}
	if rate := d.reading.rate(); rate > 0 {
		return rate
	}
	return cache.Uncompressed
}

// LimitWriting bounds the bytes that are written in a second; 0: no bound. Measurements of the directory include the waits, so
// decisions know the bound.
func (d *Directory) LimitWriting(perSecond int64) { d.dir.LimitWriting(perSecond) }

// WriteWaited returns for how long streams have waited for the bound of LimitWriting.
func (d *Directory) WriteWaited() time.Duration { return d.dir.WriteWaited() }

// freeBytes returns how many bytes may still be written, by the bound of the directory and the space of its file system. It
// is negative if neither is known.
func (d *Directory) freeBytes() int64 {
	free := int64(-1)
	var state unix.Statfs_t
	if d.dir.Call("asking for free space", func() error { return unix.Statfs(d.path, &state) }) == nil {
		free = bytesOf(state.Bavail, state.Frsize)
	}
	if room, bounded, err := d.dir.Room(); err == nil && bounded {
		if free < 0 || room < free {
			free = room
		}
	}
	return free
}

// bytesOf returns the size of blocks, or the largest number: a mounted bucket has no bound, and says so with many blocks.
func bytesOf(blocks uint64, each int64) int64 {
	high, low := bits.Mul64(blocks, uint64(each))
	if high > 0 || low > math.MaxInt64 {
		return math.MaxInt64
	}
	return int64(low)
}
