package run

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/pecan-ml/pecan/native/tf"
	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/graph"
	"github.com/pecan-ml/pecan/service/graph/rewrite"
	"github.com/pecan-ml/pecan/service/graph/split"
	"github.com/pecan-ml/pecan/service/worker/dataset"
)

// lends is a source that lends an iterator.
type lends struct{ it *tf.Iterator }

func (l lends) Pull() ([]*tf.Tensor, error) { return l.it.Next() }

func (l lends) PullOrLend(loan *tf.Loan) ([]*tf.Tensor, error) {
	fetched, _, err := l.it.Reclaim()
	for _, each := range fetched {
		tf.ReleaseAll(each)
	}
	if err != nil {
		return nil, err
	}
	element, err := l.it.Next()
	if err == nil {
		l.it.Lend(loan, 100_000, 1<<30)
	}
	return element, err
}

// A pooled iterator that has ended a stream early keeps nothing that the stream's source has lent: the next stream would get its
// elements.
func TestTheNextStreamGetsNothingThatWasLent(t *testing.T) {
	runtime, err := tf.NewContext(tf.ContextOptions{InterOpThreads: 4, IntraOpThreads: 2})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(runtime.Close)
	open := func(serialised []byte, types []tf.DataType) *tf.Iterator {
		it, err := runtime.NewIterator(serialised, types)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(it.Close)
		return it
	}
	var f feed
	handle := tf.RegisterSource(&f)
	t.Cleanup(func() { tf.RemoveSource(handle) })
	data, err := os.ReadFile(filepath.Join("..", "..", "graph", "testdata", "cached.pb"))
	if err != nil {
		t.Fatal(err)
	}
	g, err := graph.Parse(data, graph.PeerLimits())
	if err != nil {
		t.Fatal(err)
	}
	plan, err := split.MakePlan(g, &pecanv1.JobOptions{}, split.Env{})
	if err != nil {
		t.Fatal(err)
	}
	plan = proto.Clone(plan).(*pecanv1.Plan)
	plan.Cache.Packed = false
	downstream, err := rewrite.Instantiate(g, plan, rewrite.At{Mode: plan.GetMode(), Source: -1, Cached: plan.GetCache(), CacheSource: handle})
	if err != nil {
		t.Fatal(err)
	}
	endless, err := os.ReadFile(filepath.Join("..", "..", "..", "native", "tf", "testdata", "endless.graph"))
	if err != nil {
		t.Fatal(err)
	}
	lent := open(endless, []tf.DataType{tf.Int64})
	f.set(lends{lent})
	types, err := dataset.OutputTypes(downstream.A)
	if err != nil {
		t.Fatal(err)
	}
	it := open(downstream.A, types)
	element, err := it.Next()
	if err != nil {
		t.Fatal(err)
	}
	tf.ReleaseAll(element)
	f.set(nil)
	free := make(chan struct{})
	go func() {
		if element, err := lent.Next(); err == nil {
			tf.ReleaseAll(element)
		}
		close(free)
	}()
	select {
	case <-free:
	case <-time.After(time.Minute):
		t.Error("the iterator is still lent")
	}
}
