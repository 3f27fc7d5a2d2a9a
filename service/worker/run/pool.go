package run

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/pecan-ml/pecan/native/tf"
	"github.com/pecan-ml/pecan/service/graph/pooled"
	"github.com/pecan-ml/pecan/service/worker/profile"
)

// Idle pooled iterators have three bounds: their number for each slot, the bytes of all their graphs, and the time without a
// stream. maxTemplates and maxTemplateBytes bound the remembered templates. A stream has up to three graphs, and closing
// streams and starts at an index have other graphs. maxClosing bounds the iterators that are closed at the same time.
const (
	idlePerSlot      = 4
	maxIdleBytes     = 256 << 20
	maxIdleTime      = 10 * time.Minute
	maxTemplates     = 256
	maxTemplateBytes = 256 << 20
	maxClosing       = 64
)

// pool keeps the pooled iterators that have no stream now, for later streams with the same template.
type pool struct {
	mu sync.Mutex
	// idle are the iterators without a stream, the most recently used one first.
	idle   []*pooledIterator
	closed bool
	// templates are the remembered templates, the most recently used one last.
	templates []template
	// closing closes the iterators that leave the pool. Neither a run nor the sampling waits for that, because TensorFlow may
	// delete an iterator up to a minute late.
	closing errgroup.Group
}

// template is a template, or the reason why the streams of a key need iterators of their own.
type template struct {
	*pooled.Template
	key pooled.Key
	// bytes is the size of the graph.
	bytes int
	why   error
	pace  *pace
	// tree is the tree of the streams' graphs; nil if there is none.
	tree *profile.Tree
}

// pooledIterator runs one stream after another. It belongs to one run at a time, or to the pool.
type pooledIterator struct {
	*tf.Iterator
	key     pooled.Key
	runtime *tf.Context
	// inline is set if the steps run inline.
	inline bool
	// bytes is the size of the graph.
	bytes int64
	// pace is the pace of its template.
	pace *pace
	// meters is the name under which the graph counts. history is what it counted in earlier streams.
	meters  string
	history profile.History
	// feed is the source of the elements that the stream's own PecanPull reads, under the handle elements.
	feed     feed
	elements int64
	// leaveTables releases the tables and variables that the graph shares with others.
	leaveTables func()
	// streams counts the streams that the iterator began.
	streams int
	idle    time.Time
}

// Close frees the iterator.
func (p *pooledIterator) Close() {
	p.Iterator.Close()
	p.leaveTables()
	tf.RemoveSource(p.elements)
}

func (p *pooledIterator) close() error {
	p.Close()
	return nil
}

// feed passes on the elements of the current stream's source.
type feed struct {
	from atomic.Pointer[tf.Source]
	loan atomic.Pointer[tf.Loan]
}

// Pull implements tf.Source.
func (f *feed) Pull() ([]*tf.Tensor, error) {
	from := f.from.Load()
	if from == nil {
		return nil, tf.ErrCancelled
	}
	return (*from).Pull()
}

// PullOrLend implements tf.Lender.
func (f *feed) PullOrLend(loan *tf.Loan) ([]*tf.Tensor, error) {
	f.loan.Store(loan)
	from := f.from.Load()
	if from == nil {
		return nil, tf.ErrCancelled
	}
	if lender, ok := (*from).(tf.Lender); ok {
		return lender.PullOrLend(loan)
	}
	return (*from).Pull()
}

// set makes source the source of the next stream; nil means none.
func (f *feed) set(source tf.Source) {
	if loan := f.loan.Load(); loan != nil {
		// The op must fetch nothing for the next stream from what the earlier one has lent.
		loan.Recall()
	}
	if source == nil {
		f.from.Store(nil)
		return
	}
	f.from.Store(&source)
}

// templateOf returns the template of a key, which it makes from the graph of a stream.
func (p *pool) templateOf(key pooled.Key, serialised []byte) template {
	p.mu.Lock()
	known, ok := p.remembered(key)
	p.mu.Unlock()
	if ok {
		return known
	}
	made, err := pooled.NewTemplate(serialised)
	p.mu.Lock()
	defer p.mu.Unlock()
	if other, twice := p.remembered(key); twice {
		return other
	}
	known = template{made, key, len(serialised), err, new(pace), profile.NewTree(serialised)}
	p.templates = append(p.templates, known)
	kept, bytes := 0, 0
	for _, each := range slices.Backward(p.templates) {
		if bytes += each.bytes; kept == maxTemplates || kept > 0 && bytes > maxTemplateBytes {
			break
		}
		kept++
	}
	p.templates = slices.Delete(p.templates, 0, len(p.templates)-kept)
	return known
}

// remembered returns the template of a key, if there is one, and makes it the most recently used one. The caller holds mu.
func (p *pool) remembered(key pooled.Key) (template, bool) {
	i := slices.IndexFunc(p.templates, func(t template) bool { return t.key == key })
	if i < 0 {
		return template{}, false
	}
	known := p.templates[i]
	p.templates = append(slices.Delete(p.templates, i, i+1), known)
	return known, true
}

// take returns an idle iterator with a template in a runtime, whose steps run inline or not; nil without one.
func (p *pool) take(key pooled.Key, runtime *tf.Context, inline bool) *pooledIterator {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i, each := range p.idle {
		if each.key == key && each.runtime == runtime && each.inline == inline {
			p.idle = append(p.idle[:i], p.idle[i+1:]...)
			return each
		}
	}
	return nil
}

// put takes back an iterator whose stream has ended. It keeps at most the given number of idle iterators.
func (p *pool) put(it *pooledIterator, most int) {
	it.idle = time.Now()
	p.mu.Lock()
	p.idle = append([]*pooledIterator{it}, p.idle...)
	kept, bytes := 0, int64(0)
	for kept < len(p.idle) && kept < most && !p.closed {
		if bytes += p.idle[kept].bytes; bytes > maxIdleBytes {
			break
		}
		kept++
	}
	dropped := p.keep(kept)
	p.mu.Unlock()
	p.closeAll(dropped)
}

func (p *pool) closeAll(iterators []*pooledIterator) {
	for _, each := range iterators {
		p.closing.Go(each.close)
	}
}

// keep keeps the first idle iterators and returns the others. The caller holds mu.
func (p *pool) keep(n int) []*pooledIterator {
	dropped := append([]*pooledIterator(nil), p.idle[n:]...)
	clear(p.idle[n:])
	p.idle = p.idle[:n]
	return dropped
}

// expire closes the iterators that were idle for long. It leaves some for a later call if too many are being closed.
func (p *pool) expire() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for n := len(p.idle) - 1; n >= 0 && time.Since(p.idle[n].idle) > maxIdleTime && p.closing.TryGo(p.idle[n].close); n-- {
		p.keep(n)
	}
}

// close closes all idle iterators, and waits until those that left the pool are closed. Iterators that are put later are
// closed too.
func (p *pool) close() {
	p.mu.Lock()
	p.closed = true
	dropped := p.keep(0)
	p.mu.Unlock()
	p.closeAll(dropped)
	_ = p.closing.Wait()
}
