package run

import (
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/pecan-ml/pecan/native/tf"
	"github.com/pecan-ml/pecan/service/graph/pooled"
)

// poolTest makes pooled iterators of one graph, and notes the streams field of those that are closed.
type poolTest struct {
	t       *testing.T
	runtime *tf.Context
	graph   []byte
	key     pooled.Key
	pool    pool
	mu      sync.Mutex
	closed  []int
}

func newPoolTest(t *testing.T) *poolTest {
	runtime, err := tf.NewContext(tf.ContextOptions{InterOpThreads: 1, IntraOpThreads: 1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(runtime.Close)
	serialised, key, _ := sumsGraph(t)
	return &poolTest{t: t, runtime: runtime, graph: serialised, key: key}
}

// iterator makes an iterator with a number.
func (p *poolTest) iterator(number int, bytes int64) *pooledIterator {
	p.t.Helper()
	template := p.pool.templateOf(p.key, p.graph)
	if template.why != nil {
		p.t.Fatal(template.why)
	}
	it, err := p.runtime.NewPooled(func(source int64) ([]byte, error) {
		return template.Graph(pooled.Names{Arguments: source})
	}, []tf.DataType{tf.Float})
	if err != nil {
		p.t.Fatal(err)
	}
	made := &pooledIterator{Iterator: it, key: p.key, runtime: p.runtime, bytes: bytes, streams: number}
	made.elements = tf.RegisterSource(&made.feed)
	made.leaveTables = func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.closed = append(p.closed, number)
	}
	return made
}

func (p *poolTest) check(idle, closed []int) {
	p.t.Helper()
	_ = p.pool.closing.Wait()
	var have []int
	for _, each := range p.pool.idle {
		have = append(have, each.streams)
	}
	if slices.Sort(p.closed); !slices.Equal(have, idle) || !slices.Equal(p.closed, closed) {
		p.t.Errorf("idle are %v, want %v; closed are %v, want %v", have, idle, p.closed, closed)
	}
}

func TestThePoolKeepsTheIteratorsThatRanLast(t *testing.T) {
	p := newPoolTest(t)
	for number := range 5 {
		p.pool.put(p.iterator(number, 1), 3)
	}
	p.check([]int{4, 3, 2}, []int{0, 1})
	if it := p.pool.take(p.key, p.runtime, true); it != nil {
		t.Error("an iterator whose steps do not run inline was taken for one that does")
	}
	it := p.pool.take(p.key, p.runtime, false)
	if it == nil || it.streams != 4 {
		t.Fatalf("%v was taken", it)
	}
	p.pool.put(it, 3)
	p.pool.close()
	p.check(nil, []int{0, 1, 2, 3, 4})
	p.pool.put(p.iterator(5, 1), 3)
	p.check(nil, []int{0, 1, 2, 3, 4, 5})
}

func TestThePoolBoundsTheBytesOfIdleGraphs(t *testing.T) {
	p := newPoolTest(t)
	defer p.pool.close()
	p.pool.put(p.iterator(0, 1), 9)
	p.pool.put(p.iterator(1, maxIdleBytes/2), 9)
	p.pool.put(p.iterator(2, maxIdleBytes/2), 9)
	p.check([]int{2, 1}, []int{0})
	p.pool.put(p.iterator(3, maxIdleBytes+1), 9)
	p.check(nil, []int{0, 1, 2, 3})
}

func TestThePoolClosesIteratorsThatWereIdleForLong(t *testing.T) {
	p := newPoolTest(t)
	defer p.pool.close()
	for number := range 3 {
		p.pool.put(p.iterator(number, 1), 9)
	}
	for _, each := range p.pool.idle[1:] {
		each.idle = time.Now().Add(-maxIdleTime - time.Second)
	}
	p.pool.expire()
	p.check([]int{2}, []int{0, 1})
}

// TensorFlow may delete an iterator up to a minute late. The end of another stream, and the samples of all, do not wait.
func TestNothingWaitsForAnIteratorThatLeavesThePool(t *testing.T) {
	p := newPoolTest(t)
	evicted, expired := p.iterator(0, 1), p.iterator(1, 1)
	synctest.Test(t, func(t *testing.T) {
		deleted := make(chan struct{})
		for _, each := range []*pooledIterator{evicted, expired} {
			note := each.leaveTables
			each.leaveTables = func() {
				<-deleted
				note()
			}
		}
		p.pool.put(evicted, 1)
		p.pool.put(expired, 1)
		p.pool.idle[0].idle = time.Now().Add(-maxIdleTime - time.Second)
		p.pool.expire()
		if len(p.pool.idle) > 0 || len(p.closed) > 0 {
			t.Errorf("%d are idle, and %v are closed", len(p.pool.idle), p.closed)
		}
		close(deleted)
		p.pool.close()
	})
	if slices.Sort(p.closed); !slices.Equal(p.closed, []int{0, 1}) {
		t.Errorf("after the pool was closed, %v are closed", p.closed)
	}
}

func TestThePoolForgetsTheTemplatesThatWereNotUsed(t *testing.T) {
	p := newPoolTest(t)
	keys := make([]pooled.Key, maxTemplates+1)
	for i := range keys {
		// Every bit of a graph that is no argument is part of the key.
		key, _, err := pooled.Separate(protowire.AppendVarint(protowire.AppendTag(slices.Clone(p.graph), 1000, protowire.VarintType), uint64(i)))
		if err != nil {
			t.Fatal(err)
		}
		keys[i] = key
	}
	first := p.pool.templateOf(keys[0], p.graph)
	for _, key := range keys[1:] {
		p.pool.templateOf(key, p.graph)
		if p.pool.templateOf(keys[0], p.graph).pace != first.pace {
			t.Fatal("the template of every other stream was forgotten")
		}
	}
	if _, kept := p.pool.remembered(keys[1]); kept || len(p.pool.templates) != maxTemplates {
		t.Errorf("%d templates are kept, the least recently used among them: %v", len(p.pool.templates), kept)
	}
	if _, kept := p.pool.remembered(keys[2]); !kept {
		t.Error("a template was forgotten that was used later than another")
	}
	p.pool.templates[len(p.pool.templates)-1].bytes = maxTemplateBytes
	if p.pool.templateOf(keys[1], p.graph); len(p.pool.templates) != 1 || p.pool.templates[0].key != keys[1] {
		t.Errorf("%d templates are kept beyond the bound of their bytes", len(p.pool.templates))
	}
}
