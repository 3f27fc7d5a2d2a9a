package cachefill

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pecan-ml/pecan/native/buffer"
	"github.com/pecan-ml/pecan/native/tf"
	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/proto/reason"
	"github.com/pecan-ml/pecan/service/cache"
	"github.com/pecan-ml/pecan/service/internal/clock"
	"github.com/pecan-ml/pecan/service/internal/safedir"
)

const (
	// ackWait is the default of Directory.AckWait.
	ackWait = 2 * time.Second
	// commitWait is the default of Directory.commitWait. A mounted bucket uploads a segment before it is durable.
	commitWait = 30 * time.Second
	// collectPeriod is the longest time between two searches for unneeded files.
	collectPeriod = time.Minute
	// idleBytes is the memory of blocks that is kept for later blocks.
	idleBytes = 32 << 20
	// maxNames bounds the names in one message.
	maxNames = 5000
)

// Directory is the worker's side of all caches: the directory, the segments that are not acknowledged yet, and
// the unneeded files.
type Directory struct {
	Log *slog.Logger
	// Send queues a message for the dispatcher.
	Send func(messages ...*pecanv1.WorkerMessage)
	// Running are the goroutines that the worker waits for when it closes.
	Running *sync.WaitGroup
	// Cluster returns the cluster that the worker belongs to; "" before its first session. Names of segments carry it, and
	// files of other clusters in the directory are left alone.
	Cluster func() string
	// Compress is set if segments are compressed even if the directory is faster than the compressor.
	Compress bool
	// Worker is the id of this worker.
	Worker string
	// OrphanAfter is the age at which a file that no cache needs is removed.
	OrphanAfter time.Duration
	// AckWait bounds how long the end of a stream waits for the acknowledgement of its segments. The next epoch then finds them.
	AckWait time.Duration
	// commitWait is how long a stream waits at most until a segment is durable.
	commitWait time.Duration
	dir        *cache.Dir
	path       string
	// memory has the blocks that were read.
	memory *buffer.Pool
	// Runtime returns the context of the graphs downstream of cached steps. They wait for the upstream graph, and
	// another graph may wait for them. The context is made at its first use.
	Runtime func() (*tf.Context, error)
	running atomic.Bool
	// removing is set while unneeded files are being removed.
	removing atomic.Bool

	// begun counts the segments that this process has begun. The names of segments have it.
	begun atomic.Uint64

	written, read, dropped, invalid, unversioned atomic.Uint64
	warned, warnedSlow, warnedUnversioned        sync.Once
	// reading and writing measure the speed of the directory.
	reading, writing transfers
	health           health
	follower         follower

	mu sync.Mutex
	// own are the segments that this worker writes, or that wait for their acknowledgement.
	own map[string]*ownSegment
	// seen has the time at which this worker first saw a file.
	seen map[string]time.Time
}

type ownSegment struct {
	// segment and acknowledged are nil while it is being written. acknowledged is closed when the dispatcher has answered.
	segment      *pecanv1.CacheSegment
	acknowledged chan struct{}
}

// Open opens the directory of caches. bytes bounds the size of its files; 0: no bound.
func Open(path string, bytes int64) (*Directory, error) {
	dir, err := cache.OpenDir(path, bytes)
	if err != nil {
		return nil, reason.New(reason.CacheUnsafe, "--cache-dir %s: %w", path, err)
	}
	memory, err := buffer.NewPool(buffer.Config{MaxIdle: idleBytes, Checked: buffer.Sanitized})
	if err != nil {
		return nil, err
	}
	return &Directory{AckWait: ackWait, commitWait: commitWait, dir: dir, path: path, memory: memory, own: map[string]*ownSegment{}, seen: map[string]time.Time{}}, nil
}

// Close frees the context, and memory that no tensor has.
func (d *Directory) Close() error {
	if d == nil {
		return nil
	}
	d.memory.Close()
	if !d.running.Load() {
		return nil
	}
	runtime, err := d.Runtime()
	if err == nil {
		runtime.Close()
	}
	return err
}

// block is a buffer as the reader of a segment holds it.
type block struct{ *buffer.Buffer }

func (b block) Retain() { b.Buffer.Retain() }

// alloc returns memory for a block of a segment.
func (d *Directory) alloc(bytes int) (cache.Block, error) {
	b, err := d.memory.Get(bytes)
	if err != nil {
		return nil, err
	}
	return block{b}, nil
}

// Metrics returns the counts since the worker started; nil without a directory.
func (d *Directory) Metrics() *pecanv1.CacheMetrics {
	if d == nil {
		return nil
	}
	return &pecanv1.CacheMetrics{
		BytesWritten: d.written.Load(), BytesRead: d.read.Load(), WritesDropped: d.dropped.Load(), SegmentsInvalid: d.invalid.Load(), PartsUnversioned: d.unversioned.Load(),
	}
}

// begin records that a segment of that name is being written here.
func (d *Directory) begin(name string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.own[name] = &ownSegment{}
}

// drop records that a segment is not completed, and why.
func (d *Directory) drop(name string, why error) {
	d.mu.Lock()
	delete(d.own, name)
	d.mu.Unlock()
	if why == nil || errors.Is(why, context.Canceled) {
		return
	}
	d.dropped.Add(1)
	level := d.Log.Debug
	d.warned.Do(func() { level = d.Log.Warn })
	level("a cache segment is not written; the epoch continues without it (logged once; pecanctl status counts)", "file", name, "error", why)
}

// skip records that a part is neither read nor written, because the version of a source file is not known. A segment of the part may
// still be valid.
func (d *Directory) skip(why error) {
	d.unversioned.Add(1)
	d.warnedUnversioned.Do(func() {
		d.Log.Warn("the version of a source file is not known; its part is computed without the cache (logged once; pecanctl status counts)", "error", why)
	})
}

// report reports a durable segment to the dispatcher. The channel is closed when it has answered.
func (d *Directory) report(segment *pecanv1.CacheSegment) <-chan struct{} {
	d.mu.Lock()
	own := d.own[segment.Name]
	own.segment, own.acknowledged = segment, make(chan struct{})
	d.mu.Unlock()
	d.written.Add(uint64(segment.Bytes))
	d.Send(cacheWritten(segment))
	return own.acknowledged
}

func cacheWritten(segment *pecanv1.CacheSegment) *pecanv1.WorkerMessage {
	return &pecanv1.WorkerMessage{Kind: &pecanv1.WorkerMessage_CacheSegmentWritten{CacheSegmentWritten: &pecanv1.CacheSegmentWritten{Segment: segment}}}
}

// Resend reports to a new session what the one before it may have missed.
func (d *Directory) Resend() {
	if d == nil {
		return
	}
	d.follower.wake()
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, own := range d.own {
		if own.segment != nil {
			d.Send(cacheWritten(own.segment))
		}
	}
}

// Acknowledge handles the dispatcher's answer to a report.
func (d *Directory) Acknowledge(answer *pecanv1.CacheSegmentAck) {
	if d == nil {
		return
	}
	d.mu.Lock()
	own := d.own[answer.GetName()]
	if own != nil && own.segment != nil {
		delete(d.own, answer.GetName())
		close(own.acknowledged)
	}
	d.mu.Unlock()
	if own != nil && !answer.GetAccepted() {
		d.Running.Go(func() { _ = d.remove(answer.GetName()) })
	}
}

func (d *Directory) remove(name string) error {
	err := d.dir.Remove(name)
	if err != nil {
		d.Log.Warn("removing a file of the cache directory failed", "file", name, "error", err)
	}
	return err
}

// invalidate counts a segment that cannot be used, and returns the report of it. A damaged segment is moved aside, but no file of
// another user. If the directory is slow, the segment may be good: it stays, and there is no report.
func (d *Directory) invalidate(segment *pecanv1.CacheSegment, damaged bool, why error) *pecanv1.CacheSegmentInvalid {
	if errors.Is(why, cache.ErrNoAnswer) {
		d.health.failed(why)
		d.warnedSlow.Do(func() {
			d.Log.Warn("the cache directory does not answer in time; streams compute their elements until it answers (logged once)", "file", segment.GetName(), "error", why)
		})
		return nil
	}
	d.invalid.Add(1)
	d.Log.Warn("a cache segment cannot be used; its elements are computed", "file", segment.GetName(), "error", why)
	if damaged && !errors.Is(why, safedir.ErrForeign) {
		if err := d.dir.Quarantine(segment.GetName()); err != nil {
			d.Log.Debug("moving a damaged segment aside failed", "file", segment.GetName(), "error", err)
		}
	}
	return &pecanv1.CacheSegmentInvalid{Segment: segment, Why: why.Error()}
}

// Collect asks the dispatcher periodically which files no cache needs.
func (d *Directory) Collect(ctx context.Context) {
	after := d.OrphanAfter
	for clock.Sleep(ctx, max(min(after/2, collectPeriod), 10*time.Millisecond)) {
		names, err := d.dir.List(d.Cluster())
		if err != nil {
			d.Log.Debug("listing the cache directory failed", "error", err)
			continue
		}
		old := d.orphansAmong(names, after)
		for len(old) > 0 {
			n := min(len(old), maxNames)
			d.Send(&pecanv1.WorkerMessage{Kind: &pecanv1.WorkerMessage_CacheFiles{CacheFiles: &pecanv1.CacheFiles{Names: old[:n]}}})
			old = old[n:]
		}
	}
}

// orphansAmong returns the names that this worker has known for at least after and does not write itself. It
// ignores the files' own times, because clocks jump.
func (d *Directory) orphansAmong(names []string, after time.Duration) (old []string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	seen := make(map[string]time.Time, len(names))
	for _, name := range names {
		since, known := d.seen[name]
		if !known {
			since = time.Now()
		}
		seen[name] = since
		if time.Since(since) >= after && d.own[cache.Final(name)] == nil {
			old = append(old, name)
		}
	}
	d.seen = seen
	return old
}

// RemoveOrphans removes the files that the dispatcher names as unneeded. It touches only names of the worker's cluster.
func (d *Directory) RemoveOrphans(names []string) {
	if d == nil || !d.removing.CompareAndSwap(false, true) {
		// The dispatcher is asked about these files again.
		return
	}
	// The dispatcher's next command must not wait for a file system.
	d.Running.Go(func() {
		defer d.removing.Store(false)
		for _, name := range names {
			d.mu.Lock()
			own := d.own[cache.Final(name)] != nil
			d.mu.Unlock()
			if owner := cache.ClusterOf(name); own || owner == "" || owner != d.Cluster() {
				continue
			}
			if err := d.remove(name); errors.Is(err, cache.ErrNoAnswer) {
				// The dispatcher is asked about the others again.
				return
			}
		}
	})
}
