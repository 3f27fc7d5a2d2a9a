package cachefill

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/cache"
	"github.com/pecan-ml/pecan/service/internal/clock"
)

// A probe writes a segment, makes it durable, reads it back and removes it. With two sizes of elements, the time per element
// and the time per byte can be computed. Production measures the same later, under its own load.

const (
	// probeEvery is the time between two probes. While the directory cannot be written, that time is retryEvery. The free
	// space is also read after each retryEvery.
	probeEvery = 10 * time.Minute
	retryEvery = 10 * time.Second
	// probeTime bounds the writing of one size.
	probeTime = time.Second
	probeKey  = "probe"
)

// probeSizes are the sizes of elements, and how many a probe writes.
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
	for _, size := range probeSizes {
		write, read, err := d.probeSize(ctx, size.bytes, size.elements)
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

// probeSize writes elements of one size, drops them from the page cache, and reads them back. The file is deleted
// afterwards.
func (d *Directory) probeSize(ctx context.Context, bytes, elements int) (write, read *pecanv1.StoreTransfer, err error) {
	id := cache.ID{Key: probeKey, Parts: 1, Source: probeKey}
	name := cache.Name(d.Cluster(), probeKey, 0, 0, d.runs.Add(1), d.Worker)
	d.begin(name)
	defer d.drop(name, nil)
	data := make([]byte, bytes)
	_, _ = rand.NewChaCha8([32]byte{}).Read(data)
	began := time.Now()
	writer, err := d.dir.Create(name, id, nil, cache.Uncompressed)
	if err != nil {
		return nil, nil, err
	}
	written := 0
	for ; written < elements && (written == 0 || time.Since(began) < probeTime); written++ {
		if ctx.Err() != nil {
			return nil, nil, errors.Join(ctx.Err(), writer.Abort())
		}
		if err := writer.Append(&cache.Chunk{Count: 1, Payload: [][]byte{data}}); err != nil {
			return nil, nil, errors.Join(err, writer.Abort())
		}
	}
	segment, err := writer.Commit()
	if err != nil {
		return nil, nil, err
	}
	defer d.remove(name)
	write = probeSample(written, bytes, time.Since(began))
	dropPages(filepath.Join(d.path, name))
	began = time.Now()
	reader, err := d.dir.Open(segment, d.alloc)
	if err != nil {
		return nil, nil, err
	}
	defer reader.Close()
	for {
		if _, err := reader.Next(); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return nil, nil, fmt.Errorf("read what was written: %w", err)
		}
	}
	return write, probeSample(written, bytes, time.Since(began)), nil
}

func probeSample(elements, bytes int, took time.Duration) *pecanv1.StoreTransfer {
	return &pecanv1.StoreTransfer{Elements: uint64(elements), Bytes: uint64(elements * bytes), Seconds: took.Seconds(), WorkS: took.Seconds(), Probe: true}
}

// dropPages takes a file out of the host's page cache, so that it is read from the store. If that fails, the file is read
// faster than later ones.
func dropPages(path string) {
	file, err := os.Open(path)
	if err != nil {
		return
	}
	defer file.Close()
	_ = unix.Fadvise(int(file.Fd()), 0, 0, unix.FADV_DONTNEED)
}
