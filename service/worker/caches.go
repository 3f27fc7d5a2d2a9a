package worker

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pecan-ml/pecan/native/tf"
	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/proto/reason"
	"github.com/pecan-ml/pecan/service/cache"
)

const (
	// namedWait is how long the end of a stream waits for its segment to be named: whoever asks for the next epoch then finds it.
	namedWait = 2 * time.Second
	// lookEvery is how often the directory is looked through for files that nobody needs, at most.
	lookEvery = time.Minute
	// toldAtOnce bounds the names in one message.
	toldAtOnce = 5000
)

// caches is the worker's side of all caches: the directory, what was written and is not named yet, and what lies there unused.
type caches struct {
	worker *Worker
	dir    *cache.Dir
	// context runs what stands above a cached step, which waits for what lies below; another graph may wait for it. It is made when
	// it is needed first.
	context func() (*tf.Context, error)
	running atomic.Bool
	// removing: files that nobody needs are being removed.
	removing atomic.Bool

	runs, written, read, dropped, spoilt atomic.Uint64
	warned                               sync.Once

	mu sync.Mutex
	// own are the names of segments that are being written here, or wait to be named; told are closed when they are.
	own map[string]*ownSegment
	// seen says since when this worker knows of a file.
	seen map[string]time.Time
}

type ownSegment struct {
	// segment is nil while it is being written.
	segment *pecanv1.CacheSegment
	named   chan struct{}
}

// openCaches opens the directory that the configuration names; nil without one.
func openCaches(w *Worker) (*caches, error) {
	if w.config.CacheDir == "" {
		return nil, nil
	}
	dir, err := cache.OpenDir(w.config.CacheDir, w.config.CacheBytes)
	if err != nil {
		return nil, reason.New(reason.CacheUnsafe, "--cache-dir %s: %w", w.config.CacheDir, err)
	}
	return &caches{worker: w, dir: dir, own: map[string]*ownSegment{}, seen: map[string]time.Time{}}, nil
}

// close frees the context.
func (c *caches) close() error {
	if c == nil || !c.running.Load() {
		return nil
	}
	runtime, err := c.context()
	if err == nil {
		runtime.Close()
	}
	return err
}

func (c *caches) figures() *pecanv1.CacheMetrics {
	if c == nil {
		return nil
	}
	return &pecanv1.CacheMetrics{
		BytesWritten: c.written.Load(), BytesRead: c.read.Load(), WritesDropped: c.dropped.Load(), SegmentsInvalid: c.spoilt.Load(),
	}
}

// begin notes that a segment of that name is being written here.
func (c *caches) begin(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.own[name] = &ownSegment{named: make(chan struct{})}
}

// drop notes that it is not written to its end, and why.
func (c *caches) drop(name string, why error) {
	c.mu.Lock()
	delete(c.own, name)
	c.mu.Unlock()
	if why == nil {
		return
	}
	c.dropped.Add(1)
	level := c.worker.log.Debug
	c.warned.Do(func() { level = c.worker.log.Warn })
	level("what passes cache() is not kept, the epoch goes on without (said once; pecanctl status counts)", "file", name, "error", why)
}

// tell has the dispatcher name a segment that is durable. The channel is closed when it has answered.
func (c *caches) tell(segment *pecanv1.CacheSegment) <-chan struct{} {
	c.mu.Lock()
	own := c.own[segment.Name]
	own.segment = segment
	c.mu.Unlock()
	c.written.Add(uint64(segment.Bytes))
	c.worker.session.send(cacheWritten(segment))
	return own.named
}

func cacheWritten(segment *pecanv1.CacheSegment) *pecanv1.WorkerMessage {
	return &pecanv1.WorkerMessage{Kind: &pecanv1.WorkerMessage_CacheSegmentWritten{CacheSegmentWritten: &pecanv1.CacheSegmentWritten{Segment: segment}}}
}

// again tells a new session what the one before it may not have heard.
func (c *caches) again() {
	if c == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, own := range c.own {
		if own.segment != nil {
			c.worker.session.send(cacheWritten(own.segment))
		}
	}
}

// named is the dispatcher's answer.
func (c *caches) named(answer *pecanv1.CacheSegmentAck) {
	if c == nil {
		return
	}
	c.mu.Lock()
	own := c.own[answer.GetName()]
	if own != nil && own.segment != nil {
		delete(c.own, answer.GetName())
		close(own.named)
	}
	c.mu.Unlock()
	if own != nil && !answer.GetAccepted() {
		c.worker.running.Go(func() { c.remove(answer.GetName()) })
	}
}

func (c *caches) remove(name string) {
	if err := c.dir.Remove(name); err != nil {
		c.worker.log.Warn("remove a file of the cache directory", "file", name, "error", err)
	}
}

// spoil says that a segment cannot be used; damaged ones are taken out of the way.
func (c *caches) spoil(segment *pecanv1.CacheSegment, damaged bool, why error) {
	c.spoilt.Add(1)
	c.worker.log.Warn("a segment of a cache cannot be used, its elements are computed", "file", segment.GetName(), "error", why)
	if damaged {
		if err := c.dir.Quarantine(segment.GetName()); err != nil {
			c.worker.log.Debug("take a damaged segment out of the way", "file", segment.GetName(), "error", err)
		}
	}
	c.worker.session.send(&pecanv1.WorkerMessage{Kind: &pecanv1.WorkerMessage_CacheSegmentInvalid{CacheSegmentInvalid: &pecanv1.CacheSegmentInvalid{
		Segment: segment, Why: why.Error(),
	}}})
}

// collect asks the dispatcher again and again which files nobody needs, and removes them.
func (c *caches) collect(ctx context.Context) {
	after := c.worker.config.CacheOrphanAfter
	for pause(ctx, max(min(after/2, lookEvery), 10*time.Millisecond)) {
		names, err := c.dir.List()
		if err != nil {
			c.worker.log.Debug("look through the cache directory", "error", err)
			continue
		}
		old := c.old(names, after)
		for len(old) > 0 {
			n := min(len(old), toldAtOnce)
			c.worker.session.send(&pecanv1.WorkerMessage{Kind: &pecanv1.WorkerMessage_CacheFiles{CacheFiles: &pecanv1.CacheFiles{Names: old[:n]}}})
			old = old[n:]
		}
	}
}

// old gives the names that this worker has seen for so long, and is not at itself. The files' own times are not looked at: clocks jump.
func (c *caches) old(names []string, after time.Duration) (old []string) {
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

// orphans removes what the dispatcher says that nobody needs.
func (c *caches) orphans(names []string) {
	if c == nil || !c.removing.CompareAndSwap(false, true) {
		// They are asked for again.
		return
	}
	// The dispatcher's next command does not wait for a file system.
	c.worker.running.Go(func() {
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
