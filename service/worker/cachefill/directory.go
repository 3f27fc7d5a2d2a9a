package cachefill

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pecan-ml/pecan/native/tf"
	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/proto/reason"
	"github.com/pecan-ml/pecan/service/cache"
	"github.com/pecan-ml/pecan/service/internal/clock"
)

const (
	// ackWait bounds how long the end of a stream waits for the acknowledgement of its segment. The next epoch
	// then finds it.
	ackWait = 2 * time.Second
	// collectPeriod is the longest time between two searches for unneeded files.
	collectPeriod = time.Minute
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
	// Compress compresses segments if that makes them smaller.
	Compress bool
	// OrphanAfter is the age at which a file that no cache needs is removed.
	OrphanAfter time.Duration
	dir         *cache.Dir
	// Runtime returns the context of the graphs above cached steps. They wait for the upstream graph, and
	// another graph may wait for them. The context is made at its first use.
	Runtime func() (*tf.Context, error)
	running atomic.Bool
	// removing: unneeded files are being removed.
	removing atomic.Bool

	runs, written, read, dropped, invalid atomic.Uint64
	warned                                sync.Once

	mu sync.Mutex
	// own are the segments that this worker writes, or that wait for their acknowledgement.
	own map[string]*ownSegment
	// seen is the time since when this worker knows a file.
	seen map[string]time.Time
}

type ownSegment struct {
	// segment is nil while it is being written.
	segment      *pecanv1.CacheSegment
	acknowledged chan struct{}
}

// Open opens the directory of caches. bytes bounds the size of its files; 0: no bound.
func Open(path string, bytes int64) (*Directory, error) {
	dir, err := cache.OpenDir(path, bytes)
	if err != nil {
		return nil, reason.New(reason.CacheUnsafe, "--cache-dir %s: %w", path, err)
	}
	return &Directory{dir: dir, own: map[string]*ownSegment{}, seen: map[string]time.Time{}}, nil
}

// Close frees the context.
func (c *Directory) Close() error {
	if c == nil || !c.running.Load() {
		return nil
	}
	runtime, err := c.Runtime()
	if err == nil {
		runtime.Close()
	}
	return err
}

// Metrics returns the counts since the worker started; nil without a directory.
func (c *Directory) Metrics() *pecanv1.CacheMetrics {
	if c == nil {
		return nil
	}
	return &pecanv1.CacheMetrics{
		BytesWritten: c.written.Load(), BytesRead: c.read.Load(), WritesDropped: c.dropped.Load(), SegmentsInvalid: c.invalid.Load(),
	}
}

// begin records that a segment of that name is being written here.
func (c *Directory) begin(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.own[name] = &ownSegment{acknowledged: make(chan struct{})}
}

// drop records that a segment is not completed, and why.
func (c *Directory) drop(name string, why error) {
	c.mu.Lock()
	delete(c.own, name)
	c.mu.Unlock()
	if why == nil {
		return
	}
	c.dropped.Add(1)
	level := c.Log.Debug
	c.warned.Do(func() { level = c.Log.Warn })
	level("a cache segment is not written; the epoch continues without it (logged once; pecanctl status counts)", "file", name, "error", why)
}

// report reports a durable segment to the dispatcher. The channel is closed when it has answered.
func (c *Directory) report(segment *pecanv1.CacheSegment) <-chan struct{} {
	c.mu.Lock()
	own := c.own[segment.Name]
	own.segment = segment
	c.mu.Unlock()
	c.written.Add(uint64(segment.Bytes))
	c.Send(cacheWritten(segment))
	return own.acknowledged
}

func cacheWritten(segment *pecanv1.CacheSegment) *pecanv1.WorkerMessage {
	return &pecanv1.WorkerMessage{Kind: &pecanv1.WorkerMessage_CacheSegmentWritten{CacheSegmentWritten: &pecanv1.CacheSegmentWritten{Segment: segment}}}
}

// Resend reports to a new session what the one before it may have missed.
func (c *Directory) Resend() {
	if c == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, own := range c.own {
		if own.segment != nil {
			c.Send(cacheWritten(own.segment))
		}
	}
}

// Acknowledge handles the dispatcher's answer to a report.
func (c *Directory) Acknowledge(answer *pecanv1.CacheSegmentAck) {
	if c == nil {
		return
	}
	c.mu.Lock()
	own := c.own[answer.GetName()]
	if own != nil && own.segment != nil {
		delete(c.own, answer.GetName())
		close(own.acknowledged)
	}
	c.mu.Unlock()
	if own != nil && !answer.GetAccepted() {
		c.Running.Go(func() { c.remove(answer.GetName()) })
	}
}

func (c *Directory) remove(name string) {
	if err := c.dir.Remove(name); err != nil {
		c.Log.Warn("removing a file of the cache directory failed", "file", name, "error", err)
	}
}

// invalidate reports that a segment cannot be used. A damaged segment is moved aside.
func (c *Directory) invalidate(segment *pecanv1.CacheSegment, damaged bool, why error) {
	c.invalid.Add(1)
	c.Log.Warn("a cache segment cannot be used; its elements are computed", "file", segment.GetName(), "error", why)
	if damaged {
		if err := c.dir.Quarantine(segment.GetName()); err != nil {
			c.Log.Debug("moving a damaged segment aside failed", "file", segment.GetName(), "error", err)
		}
	}
	c.Send(&pecanv1.WorkerMessage{Kind: &pecanv1.WorkerMessage_CacheSegmentInvalid{CacheSegmentInvalid: &pecanv1.CacheSegmentInvalid{
		Segment: segment, Why: why.Error(),
	}}})
}

// Collect asks the dispatcher periodically which files no cache needs.
func (c *Directory) Collect(ctx context.Context) {
	after := c.OrphanAfter
	for clock.Sleep(ctx, max(min(after/2, collectPeriod), 10*time.Millisecond)) {
		names, err := c.dir.List()
		if err != nil {
			c.Log.Debug("listing the cache directory failed", "error", err)
			continue
		}
		old := c.orphansAmong(names, after)
		for len(old) > 0 {
			n := min(len(old), maxNames)
			c.Send(&pecanv1.WorkerMessage{Kind: &pecanv1.WorkerMessage_CacheFiles{CacheFiles: &pecanv1.CacheFiles{Names: old[:n]}}})
			old = old[n:]
		}
	}
}

// orphansAmong returns the names that this worker has known for at least after and does not write itself. It
// ignores the files' own times, because clocks jump.
func (c *Directory) orphansAmong(names []string, after time.Duration) (old []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	seen := make(map[string]time.Time, len(names))
	for _, name := range names {
		since, known := c.seen[name]
		if !known {
			since = time.Now()
		}
		seen[name] = since
		if time.Since(since) >= after && c.own[cache.Final(name)] == nil {
			old = append(old, name)
		}
	}
	c.seen = seen
	return old
}

// RemoveOrphans removes the files that the dispatcher names as unneeded.
func (c *Directory) RemoveOrphans(names []string) {
	if c == nil || !c.removing.CompareAndSwap(false, true) {
		// The dispatcher is asked about these files again.
		return
	}
	// The dispatcher's next command must not wait for a file system.
	c.Running.Go(func() {
		defer c.removing.Store(false)
		for _, name := range names {
			c.mu.Lock()
			own := c.own[cache.Final(name)] != nil
			c.mu.Unlock()
			if !own && cache.ValidName(name) {
				c.remove(name)
			}
		}
	})
}
