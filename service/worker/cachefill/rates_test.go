package cachefill

import (
	"math"
	"os"
	"runtime"
	"sync"
	"testing"
	"time"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/cache"
)

// A directory with little room is measured with fewer segments at once.
func TestAProbeFitsIntoTheRoomOfTheDirectory(t *testing.T) {
	d, _ := directory(t)
	for _, c := range []struct{ room, segments int64 }{{largestProbed(), 1}, {largestProbed() - 1, 1}, {100 * largestProbed(), int64(min(runtime.GOMAXPROCS(0), mostProbed))}} {
		dir, err := cache.OpenDir(d.path, c.room)
		if err != nil {
			t.Fatal(err)
		}
		d.dir = dir
		if got := d.probeSegments(); got != int(c.segments) {
			t.Errorf("with room for %d bytes, a probe has %d segments, want %d", c.room, got, c.segments)
		}
		if err := d.probe(t.Context()); err != nil {
			t.Errorf("with room for %d bytes: %v", c.room, err)
		}
	}
}

func TestAProbeMeasuresTheDirectoryAndLeavesNothing(t *testing.T) {
	d, _ := directory(t)
	if d.Rates() != nil || d.compressAbove() != cache.Uncompressed {
		t.Error("a directory that was not measured has rates")
	}
	if err := d.probe(t.Context()); err != nil {
		t.Fatal(err)
	}
	rates := d.Rates()
	if len(rates.GetReads()) != len(probeSizes) || len(rates.GetWrites()) != len(probeSizes) || rates.GetProblem() != "" {
		t.Fatalf("the rates are %v", rates)
	}
	for i, size := range probeSizes {
		for _, s := range []uint64{rates.Reads[i].Bytes, rates.Writes[i].Bytes} {
			if s != uint64(d.probeSegments()*size.bytes*size.elements) {
				t.Errorf("a probe of %d elements of %d bytes has %d bytes", size.elements, size.bytes, s)
			}
		}
		// All segments are transferred at once, so their threads may work for longer than the probe takes.
		for _, s := range []*pecanv1.StoreTransfer{rates.Reads[i], rates.Writes[i]} {
			if most := s.Seconds * float64(d.probeSegments()); !s.Probe || s.Seconds <= 0 || s.WorkS <= 0 || s.WorkS > most {
				t.Errorf("the sample is %v", s)
			}
		}
	}
	if read := rates.Reads[len(probeSizes)-1]; d.compressAbove() != float64(read.Bytes)/read.Seconds {
		t.Errorf("a compressor pays above %v bytes per second, the probe was %v", d.compressAbove(), read)
	}
	d.reading.samples = []*pecanv1.StoreTransfer{{Bytes: 3e8, Seconds: 1.5}}
	if d.compressAbove() != 2e8 {
		t.Errorf("a compressor pays above %v bytes per second, production reads 2e8", d.compressAbove())
	}
	if d.Compress = true; d.compressAbove() != 0 {
		t.Error("segments are compressed only in slow directories")
	}
	if left, err := os.ReadDir(d.path); err != nil || len(left) > 0 || len(d.own) > 0 {
		t.Errorf("the probe left %v (%v)", left, err)
	}
	if free := d.freeBytes(); free <= 0 {
		t.Errorf("%d bytes are free", free)
	}
}

// s3fs says that a bucket has 2^40-1 blocks of 16 MiB.
func TestTheSpaceOfABucketHasNoBound(t *testing.T) {
	for _, c := range []struct {
		blocks uint64
		each   int64
		want   int64
	}{
		{0, 4096, 0},
		{3, 4096, 3 * 4096},
		{1 << 33, 1 << 17, 1 << 50},
		{math.MaxInt64, 1, math.MaxInt64},
		{1 << 40, 1 << 23, math.MaxInt64},
		{1<<40 - 1, 16 << 20, math.MaxInt64},
		{math.MaxUint64, 16 << 20, math.MaxInt64},
	} {
		if got := bytesOf(c.blocks, c.each); got != c.want {
			t.Errorf("%d blocks of %d bytes have %d bytes, want %d", c.blocks, c.each, got, c.want)
		}
	}
}

// D14: the directory is removed under the worker. It counts as not writable at once if it cannot be measured, and after three
// segments in a row that could not be written.
func TestADirectoryThatCannotBeWrittenIsReported(t *testing.T) {
	d, _ := directory(t)
	if err := os.RemoveAll(d.path); err != nil {
		t.Fatal(err)
	}
	err := d.probe(t.Context())
	if err == nil {
		t.Fatal("a directory that is gone was measured")
	}
	for range mostFailures - 1 {
		d.health.failed(err)
	}
	if _, _, writable := d.Usage(); !writable {
		t.Error("two failures suffice")
	}
	d.health.failed(err)
	if rates := d.Rates(); rates.GetProblem() != err.Error() {
		t.Errorf("the rates are %v, the last error %v", rates, err)
	}
	d.health.succeeded(0)
	if _, _, writable := d.Usage(); !writable {
		t.Error("a segment that was written does not end the problem")
	}
	d.health.broken(err)
	if _, _, writable := d.Usage(); writable {
		t.Error("a failed probe does not count")
	}
}

// The free space is read rarely. In between, the dispatcher counts segments as stored, so their bytes are not free any more.
func TestASegmentTakesFreeSpaceAtOnce(t *testing.T) {
	var h health
	for _, c := range []struct{ free, written, want int64 }{{100, 30, 70}, {100, 130, 0}, {-1, 30, -1}} {
		h.setFree(c.free)
		h.succeeded(c.written)
		if _, free := h.state(); free != c.want {
			t.Errorf("%d bytes are free after %d of %d were written, want %d", free, c.written, c.free, c.want)
		}
	}
}

// Transfers that overlap count once in the time in which the directory is busy, and each in the time of threads.
func TestOverlappingTransfersAreBusyOnce(t *testing.T) {
	var both transfers
	var wait sync.WaitGroup
	const length = 50 * time.Millisecond
	begun := make(chan struct{}, 2)
	for range 2 {
		wait.Go(func() {
			end := both.begin()
			begun <- struct{}{}
			for len(begun) < 2 {
				time.Sleep(time.Millisecond)
			}
			time.Sleep(length)
			end(10, leastSampleBytes)
		})
	}
	wait.Wait()
	samples := both.sampled()
	if len(samples) != 1 {
		t.Fatalf("%d samples", len(samples))
	}
	if s := samples[0]; s.Elements != 20 || s.Bytes != 2*leastSampleBytes || s.Seconds < length.Seconds() || s.WorkS < 2*length.Seconds() || s.Seconds > 0.75*s.WorkS {
		t.Errorf("the sample is %v", s)
	}
	if again := both.sampled(); len(again) != 1 {
		t.Errorf("%d samples without another transfer", len(again))
	}
}
