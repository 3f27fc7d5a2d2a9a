package worker

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pecan-ml/pecan/native/tf"
	"github.com/pecan-ml/pecan/proto/frame"
	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/cache"
	"github.com/pecan-ml/pecan/service/graph/rewrite"
)

// keeping is the source of what stands above a cached step. It reads the stream's segment where there is one, and else runs the
// graph below, writing a segment as far as it can. Whatever happens to files, the elements are those of the graph below, each once.
// TensorFlow calls Pull from threads of its own, one at a time.
type keeping struct {
	run    *run
	caches *caches
	order  *pecanv1.CacheAction
	graphs *rewrite.StreamGraphs
	// meters is the name under which the graphs count.
	meters string
	// source is what the elements come from, as digest gives it; empty when that cannot be told.
	source string

	mu     sync.Mutex
	closed bool
	reader *cache.Reader
	table  frame.Table
	// given counts elements, across the ways of getting them.
	given  uint64
	lower  *lower
	stop   func()
	writer *cache.Writer
	name   string
	// over is set at the end of the elements; named is closed when the dispatcher knows the segment.
	over  bool
	named <-chan struct{}
	// written is a segment of which the dispatcher is still to be told. The run does that: TensorFlow's threads leave sessions alone.
	written atomic.Pointer[pecanv1.CacheSegment]
}

// digest names what a stream's elements come from: the files whose names are in the graph, with sizes and times, and the TensorFlow that
// runs it. Strings that are no files of this host count as well, as such.
func digest(names []string) string {
	sum := sha256.New()
	version := strings.SplitN(tf.Version(), ".", 3)
	fmt.Fprintf(sum, "pecan source 1 %q\n", version[:min(2, len(version))])
	for _, name := range names {
		if state, ok := fileState(name); ok {
			fmt.Fprintf(sum, "%q %s\n", name, state)
		}
	}
	return hex.EncodeToString(sum.Sum(nil))
}

// fileState gives the size and the time of a file.
func fileState(name string) (state string, ok bool) {
	info, err := os.Stat(name)
	if err != nil || !info.Mode().IsRegular() {
		return "", false
	}
	return fmt.Sprintf("%d %d", info.Size(), info.ModTime().UnixNano()), true
}

// fileStates gives the states of those names that are files.
func fileStates(names []string) map[string]string {
	states := map[string]string{}
	for _, name := range names {
		if state, ok := fileState(name); ok {
			states[name] = state
		}
	}
	return states
}

// begin opens what there is to read, or begins to write.
func (k *keeping) begin() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.source = digest(k.graphs.FileNames)
	if segment := k.order.GetSegment(); segment != nil {
		return k.beginReading(segment)
	}
	if err := k.open(); err != nil {
		return err
	}
	id := k.run.order.GetId()
	k.name = cache.Name(k.order.GetKey(), id.GetStream(), k.run.order.GetLease(), k.caches.runs.Add(1), k.run.stream.worker.workerID())
	k.caches.begin(k.name)
	writer, err := k.caches.dir.Create(k.name, k.id(), k.run.stream.worker.config.CacheCompress)
	if err != nil {
		k.caches.drop(k.name, err)
		return nil
	}
	k.writer = writer
	return nil
}

// runtime is where the graph above runs.
func (k *keeping) runtime() (*tf.Context, error) {
	k.caches.running.Store(true)
	return k.caches.context()
}

func (k *keeping) id() cache.ID {
	return cache.ID{
		Key: k.order.GetKey(), Stream: k.run.order.GetId().GetStream(), Streams: uint32(k.run.order.GetPlan().GetNumStreams()), Source: k.source,
	}
}

func (k *keeping) beginReading(segment *pecanv1.CacheSegment) (err error) {
	if segment.GetSource() != k.source {
		k.caches.spoil(segment, false, errors.New("the source files have changed since it was written, or TensorFlow has"))
		return k.open()
	}
	k.reader, err = k.caches.dir.Open(cache.Segment{
		Name: segment.GetName(), Bytes: segment.GetBytes(), Checksum: segment.GetChecksum(), Elements: segment.GetElements(), ID: k.id(),
	})
	if err != nil {
		k.caches.spoil(segment, true, err)
		return k.open()
	}
	return nil
}

// open makes the iterator of the graph below.
func (k *keeping) open() error {
	if k.closed {
		return tf.ErrCancelled
	}
	it, stop, err := k.run.newIterator(k.run.stream.worker.contexts.plain, k.graphs.BelowCache, newProfiler(k.graphs.BelowCache, k.meters, k.graphs.Ops))
	if err != nil {
		return err
	}
	k.lower, k.stop = &lower{it: it, packed: k.run.order.GetPlan().GetCache().GetPacked()}, stop
	return nil
}

// Pull implements tf.Source.
func (k *keeping) Pull() ([]*tf.Tensor, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	switch {
	case k.closed:
		return nil, tf.ErrCancelled
	case k.over:
		return nil, io.EOF
	}
	if k.reader != nil {
		tensors, err := k.read()
		if err == nil || errors.Is(err, io.EOF) {
			return tensors, err
		}
		k.caches.spoil(k.order.GetSegment(), true, err)
		_ = k.reader.Close()
		k.reader = nil
	}
	if k.lower == nil {
		if err := k.compute(); err != nil {
			return nil, err
		}
	}
	got, err := k.lower.next()
	switch failed := (*tf.Error)(nil); {
	case errors.Is(err, io.EOF):
		k.over = true
		k.commit()
		return nil, err
	case errors.As(err, &failed):
		// Which elements fail may hang on more than the files; the others could not be told from them either.
		k.drop(fmt.Errorf("an element failed: %s", failed.Message))
		return nil, err
	case err != nil:
		return nil, err
	}
	if k.writer != nil {
		if err := k.writer.Append(&got.chunk); err != nil {
			k.drop(err)
		}
	}
	k.given += uint64(got.chunk.Count)
	return got.tensors, nil
}

// read gives the next elements of the segment.
func (k *keeping) read() ([]*tf.Tensor, error) {
	chunk, err := k.reader.Next()
	if err != nil {
		k.over = errors.Is(err, io.EOF)
		return nil, err
	}
	tensors, err := raise(&chunk, &k.table)
	if err != nil {
		return nil, err
	}
	k.given += uint64(chunk.Count)
	k.caches.read.Add(uint64(chunk.Size()))
	return tensors, nil
}

// compute goes on with the graph below where the segment cannot be read on. Where that fails, whoever pulls again has it tried again: from
// another place than behind what was given, elements would come twice.
func (k *keeping) compute() (err error) {
	if err := k.open(); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			k.shut()
		}
	}()
	for left := k.given; left > 0; {
		n, err := k.lower.it.Skip(int64(min(left, skipStep)))
		left -= uint64(n)
		if err != nil {
			if errors.Is(err, io.EOF) {
				return fmt.Errorf("the dataset has %d elements less at cache() than when they were written: look for files that change", left)
			}
			return err
		}
	}
	return nil
}

// shut frees the iterator of the graph below.
func (k *keeping) shut() {
	if k.lower != nil {
		k.lower.close()
		k.stop()
		k.lower = nil
	}
}

// commit makes the segment durable and has it named. The files must be those that the elements came from, to the end.
func (k *keeping) commit() {
	if k.writer == nil {
		return
	}
	writer := k.writer
	if digest(k.graphs.FileNames) != k.source || k.tablesChanged() {
		k.drop(errors.New("the source files changed while they were read"))
		return
	}
	k.writer = nil
	s, err := writer.Commit()
	if err != nil {
		k.caches.drop(k.name, err)
		return
	}
	k.written.Store(&pecanv1.CacheSegment{
		Key: s.Key, Stream: s.Stream, Streams: s.Streams, Name: s.Name, Bytes: s.Bytes, Checksum: s.Checksum, Elements: s.Elements, Source: s.Source,
	})
}

// tablesChanged tells whether a file is not as it was when the graphs' tables were named, which was before the digest was made.
func (k *keeping) tablesChanged() bool {
	return !maps.Equal(fileStates(slices.Collect(maps.Keys(k.graphs.Files))), k.graphs.Files)
}

// tell has a segment named that has become whole. It does not wait for who is in Pull.
func (k *keeping) tell() {
	if segment := k.written.Swap(nil); segment != nil {
		named := k.caches.tell(segment)
		k.mu.Lock()
		k.named = named
		k.mu.Unlock()
	}
}

// drop gives the writing up; the elements go on.
func (k *keeping) drop(why error) {
	if k.writer == nil {
		return
	}
	if err := k.writer.Abort(); err != nil {
		k.run.stream.log.Debug("give up a segment", "file", k.name, "error", err)
	}
	k.writer = nil
	k.caches.drop(k.name, why)
}

// settle waits at the end of the stream until its segment has its name, for a while: whoever has read all and asks for the next epoch
// then finds the cache.
func (k *keeping) settle() {
	k.tell()
	k.mu.Lock()
	named := k.named
	k.mu.Unlock()
	if named == nil {
		return
	}
	timeout := time.NewTimer(namedWait)
	defer timeout.Stop()
	select {
	case <-named:
	case <-timeout.C:
	case <-k.run.ctx.Done():
	}
}

// close frees what is open. A segment that has not come to its end is of no use.
func (k *keeping) close() {
	k.tell()
	k.mu.Lock()
	defer k.mu.Unlock()
	k.closed = true
	k.drop(nil)
	if k.reader != nil {
		_ = k.reader.Close()
	}
	k.shut()
}
