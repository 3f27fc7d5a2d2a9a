package cachefill

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/cache"
	"github.com/pecan-ml/pecan/service/internal/clock"
)

// A probe writes segments, makes them durable, reads them back and removes them. With two sizes of elements, the time per element
// and the time per byte can be computed. Production measures the same later, under its own load.

const (
	// probeEvery is the time between two probes. While the directory cannot be written, that time is retryEvery. The free
	// space is also read after each retryEvery.
	probeEvery = 10 * time.Minute
	retryEvery = 10 * time.Second
	// probeTime bounds the writing of one size.
	probeTime = time.Second
	probeKey  = "probe"
	// mostProbed bounds the segments of a probe, so that probes of large hosts do not fill a shared directory's network.
	mostProbed = 8
	// probeOverhead is more than a segment of a probe has besides its elements.
	probeOverhead = 1 << 20
)

// probeSegments returns how many segments are written and read at once: as many as the directory has room for, but one at least.
func (d *Directory) probeSegments() int {
	most := min(runtime.GOMAXPROCS(0), mostProbed)
	if room, bounded, err := d.dir.Room(); err == nil && bounded {
		most = max(1, min(most, int(room/largestProbed())))
	}
	return most
}

// largestProbed returns more than the size of the largest segment of a probe.
func largestProbed() int64 {
	largest := 0
	for _, size := range probeSizes {
		largest = max(largest, size.bytes*size.elements)
	}
	return int64(largest + probeOverhead)
}

// probeSizes are the sizes of elements, and how many of them each segment of a probe has.
var probeSizes = []struct{ bytes, elements int }{{4 << 10, 128}, {1 << 20, 6}}

// Measure probes the directory until ctx ends. The worker must know its cluster.
func (d *Directory) Measure(ctx context.Context) {
	for due := time.Now(); ; {
		if problem, _ := d.health.state(); problem != "" || !time.Now().Before(due) {
			due = time.Now().Add(probeEvery)
			if err := d.probe(ctx); err != nil && ctx.Err() == nil {
				d.health.broken(err)
				d.Log.Warn("the cache directory cannot be measured; no candidate is cached until a measurement succeeds", "error", err)
			}
		}
		d.health.setFree(d.freeBytes())
		if !clock.Sleep(ctx, retryEvery) {
			return
		}
	}
}

// probe writes and reads segments of all sizes.
func (d *Directory) probe(ctx context.Context) error {
	var reads, writes []*pecanv1.StoreTransfer
	atOnce := d.probeSegments()
	for _, size := range probeSizes {
		write, read, err := d.probeSize(ctx, atOnce, size.bytes, size.elements)
		if err != nil {
			return err
		}
		reads, writes = append(reads, read), append(writes, write)
	}
	d.reading.probed(reads)
	d.writing.probed(writes)
	d.health.succeeded(0)
	return nil
}

// probeSize writes segments with elements of one size, drops them from the page cache, and reads them back. Several
// segments are written and read at once, as streams do in production: a store may be faster then. The files are deleted afterwards.
func (d *Directory) probeSize(ctx context.Context, atOnce, bytes, elements int) (write, read *pecanv1.StoreTransfer, err error) {
	data := make([]byte, bytes)
	_, _ = rand.NewChaCha8([32]byte{}).Read(data)
	segments, counts := make([]cache.Segment, atOnce), make([]int, atOnce)
	for i := range segments {
		segments[i].Name = cache.Name(d.Cluster(), probeKey, 0, 0, d.begun.Add(1), d.Worker)
		d.begin(segments[i].Name)
		defer d.drop(segments[i].Name, nil)
	}
	write, err = probeAll(counts, bytes, func(i int) (err error) {
		segments[i], counts[i], err = d.writeProbe(ctx, segments[i].Name, data, elements)
		return err
	})
	for _, segment := range segments {
		if segment.Name != "" {
			defer d.remove(segment.Name)
			d.dropPages(segment.Name)
		}
	}
	if err != nil {
		return nil, nil, err
	}
	read, err = probeAll(counts, bytes, func(i int) error { return d.readProbe(segments[i]) })
	return write, read, err
}

// probeAll transfers all segments at once. counts has the elements of each.
func probeAll(counts []int, bytes int, transfer func(i int) error) (*pecanv1.StoreTransfer, error) {
	var work atomic.Int64
	var all errgroup.Group
	began := time.Now()
	for i := range counts {
		all.Go(func() error {
			defer func() { work.Add(int64(time.Since(began))) }()
			return transfer(i)
		})
	}
	err := all.Wait()
	sample := &pecanv1.StoreTransfer{Seconds: time.Since(began).Seconds(), WorkS: time.Duration(work.Load()).Seconds(), Probe: true}
	for _, count := range counts {
		sample.Elements, sample.Bytes = sample.Elements+uint64(count), sample.Bytes+uint64(count*bytes)
	}
	return sample, err
}

// writeProbe writes a segment of equal elements, for probeTime at most. If it fails, the segment has no name, and no file stays.
func (d *Directory) writeProbe(ctx context.Context, name string, data []byte, elements int) (segment cache.Segment, written int, err error) {
	began := time.Now()
	writer, err := d.dir.Create(ctx, name, cache.ID{Key: probeKey, Parts: 1, Source: probeKey}, nil, cache.Uncompressed)
	if err != nil {
		return cache.Segment{}, 0, err
	}
	for ; written < elements && (written == 0 || time.Since(began) < probeTime); written++ {
		if ctx.Err() != nil {
			return cache.Segment{}, 0, errors.Join(ctx.Err(), writer.Abort())
		}
		if err := writer.Append(&cache.Chunk{Count: 1, Payload: [][]byte{data}}); err != nil {
			return cache.Segment{}, 0, errors.Join(err, writer.Abort())
		}
	}
	if segment, err = writer.Commit(); err != nil {
		return cache.Segment{}, 0, err
	}
	return segment, written, nil
}

// readProbe reads a segment to its end.
func (d *Directory) readProbe(segment cache.Segment) error {
	reader, err := d.dir.Open(segment, d.alloc)
	if err != nil {
		return err
	}
	defer reader.Close()
	for {
		if _, err := reader.Next(); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return fmt.Errorf("read what was written: %w", err)
		}
	}
}

// dropPages takes a file out of the host's page cache, so that it is read from the store. If that fails, the file is read
// faster than later ones.
func (d *Directory) dropPages(name string) {
	_ = d.dir.Call("dropping pages", func() error {
		file, err := os.OpenFile(filepath.Join(d.path, name), os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
		if err != nil {
			return err
		}
		defer file.Close()
		return unix.Fadvise(int(file.Fd()), 0, 0, unix.FADV_DONTNEED)
	})
}
