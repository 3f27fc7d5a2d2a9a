package run

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pecan-ml/pecan/native/tf"
	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/graph"
	"github.com/pecan-ml/pecan/service/graph/pooled"
	"github.com/pecan-ml/pecan/service/graph/rewrite"
	"github.com/pecan-ml/pecan/service/graph/split"
	"github.com/pecan-ml/pecan/service/worker/dataset"
)

// elementsOf returns up to n elements of an iterator as text, with its errors.
func elementsOf(it *tf.Iterator, n int) (out []string) {
	for len(out) < n {
		element, err := it.Next()
		if errors.Is(err, io.EOF) {
			return append(out, "end")
		}
		if err != nil {
			out = append(out, "error")
			continue
		}
		var text strings.Builder
		for _, tensor := range element {
			fmt.Fprint(&text, tensor.DType(), tensor.Dims())
			switch tensor.DType() {
			case tf.String:
				text.Write(bytes.Join(tensor.StringSegments(), nil))
			case tf.Variant, tf.Resource:
			default:
				text.Write(tensor.Data())
			}
		}
		tf.ReleaseAll(element)
		out = append(out, text.String())
	}
	return out
}

func TestPooledStreamsGiveTheElementsOfTheirOwnGraphs(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine compares the elements of many graphs")
	}
	runtime, err := tf.NewContext(tf.ContextOptions{InterOpThreads: 2, IntraOpThreads: 2})
	if err != nil {
		t.Fatal(err)
	}
	defer runtime.Close()
	pulling, err := tf.NewContext(tf.ContextOptions{InterOpThreads: 4, IntraOpThreads: 2})
	if err != nil {
		t.Fatal(err)
	}
	defer pulling.Close()
	files, err := filepath.Glob("../../graph/testdata/*.pb")
	if err != nil || len(files) == 0 {
		t.Fatal(err)
	}
	// The graphs of orders take long, and other graphs have the same steps.
	more, _ := filepath.Glob("../testdata/[a-np-z]*.graph")
	pooledGraphs, seen := 0, seen{}
	for _, file := range append(files, more...) {
		if strings.Contains(file, "clock") {
			// These elements are times.
			continue
		}
		if strings.Contains(file, "changes_of_any_size") {
			// The dataset has the steps of "changes". Both take longer than all others together.
			continue
		}
		for _, mode := range []pecanv1.Mode{pecanv1.Mode_MODE_EXACTLY_ONCE, pecanv1.Mode_MODE_DETERMINISTIC} {
			if strings.HasSuffix(file, "changes.pb") && mode == pecanv1.Mode_MODE_DETERMINISTIC {
				// Mode exactly once has the same steps.
				continue
			}
			name := strings.TrimSuffix(filepath.Base(file), filepath.Ext(file)) + "/" + strings.TrimPrefix(mode.String(), "MODE_")
			t.Run(name, func(t *testing.T) {
				if comparePooled(t, runtime, pulling, file, &pecanv1.JobOptions{Mode: mode}, &seen) {
					pooledGraphs++
				}
			})
		}
	}
	for _, random := range []string{"noise", "noise_sequential", "two_noises"} {
		t.Run(random+"/groups", func(t *testing.T) {
			// In a plan with one stream they draw from a state, so they have their own iterators.
			options := &pecanv1.JobOptions{Mode: pecanv1.Mode_MODE_EXACTLY_ONCE, Streams: 20}
			if !comparePooled(t, runtime, pulling, "../../graph/testdata/"+random+".pb", options, &seen) {
				t.Error("the streams have their own iterators")
			}
		})
	}
	t.Run("sums", func(t *testing.T) {
		before := seen
		comparePooled(t, runtime, pulling, "../../../native/tf/testdata/sums.graph", &pecanv1.JobOptions{}, &seen)
		if seen.inline == before.inline {
			t.Error("sums over several threads do not run inline")
		}
	})
	if pooledGraphs < 40 {
		t.Errorf("only %d datasets and modes have pooled streams", pooledGraphs)
	}
	if t.Logf("%d datasets and modes, %+v", pooledGraphs, seen); seen.restored < 20 || seen.inline < 20 || seen.partial < 20 || seen.second < 10 {
		t.Errorf("too few datasets and modes: %+v", seen)
	}
}

// savedState returns the bytes of an iterator's state.
func savedState(t *testing.T, it *tf.Iterator) (out []byte) {
	t.Helper()
	state, err := it.Save()
	if err != nil {
		t.Fatal(err)
	}
	defer state.Free()
	if err := state.Write(func(data []byte) error {
		out = bytes.Clone(data)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return out
}

// seen counts the datasets and modes that were restored, and the templates that ran inline. Other fields count
// the streams that began at an index although steps upstream ran again, and those with elements of a second graph.
type seen struct{ restored, inline, partial, second int }

// comparison runs the streams of a dataset in their own iterators, in pooled ones and inline.
type comparison struct {
	t *testing.T
	// pooled and inline are the pooled iterators of templates.
	pooled, inline map[pooled.Key]*pooledIterator
	made           int
	seen           *seen
}

// half is one of the graphs of a stream. It reads the elements of a source, unless from is nil. own is the feed of an iterator of
// its own.
type half struct {
	serialised []byte
	runtime    *tf.Context
	from       func() *relay
	own        *feed
}

// elements returns elements of an iterator whose graph reads from a feed.
func (h half) elements(it *tf.Iterator, reads *feed, n int) []string {
	if h.from != nil {
		source := h.from()
		defer source.from.Close()
		reads.set(source)
		defer reads.set(nil)
	}
	return elementsOf(it, n)
}

// newIterator makes a pooled iterator.
func (c *comparison) newIterator(h half, inline bool) *pooledIterator {
	c.t.Helper()
	template, err := pooled.NewTemplate(h.serialised)
	if err != nil {
		c.t.Skip("private: ", err)
	}
	types, err := dataset.OutputTypes(h.serialised)
	if err != nil {
		c.t.Fatal(err)
	}
	p := &pooledIterator{leaveTables: func() {}}
	p.elements = tf.RegisterSource(&p.feed)
	c.made++
	p.Iterator, err = h.runtime.NewPooled(func(source int64) ([]byte, error) {
		return template.Graph(pooled.Names{Arguments: source, Elements: p.elements, Meters: fmt.Sprintf("pooled_%s_%d", c.t.Name(), c.made), Inline: inline})
	}, types)
	if err != nil {
		c.t.Fatal(err)
	}
	if inline {
		p.KeepToThread()
	}
	return p
}

func (c *comparison) begin(p *pooledIterator, arguments []pooled.Argument) {
	c.t.Helper()
	tensors, err := streamArguments(arguments)
	if err != nil {
		c.t.Fatal(err)
	}
	if err := p.Begin(tensors); err != nil {
		c.t.Fatal(err)
	}
}

func (c *comparison) close() {
	for _, all := range []map[pooled.Key]*pooledIterator{c.pooled, c.inline} {
		for _, it := range all {
			it.Close()
		}
	}
}

// compare compares the elements of a stream's graph. If it saves, it also continues from a checkpoint.
func (c *comparison) compare(h half, saves bool) (saved bool) {
	const most = 40
	t := c.t
	t.Helper()
	key, arguments, err := pooled.Separate(h.serialised)
	if err != nil {
		t.Skip(err)
	}
	it := c.pooled[key]
	if it == nil {
		it = c.newIterator(h, false)
		c.pooled[key] = it
	}
	c.begin(it, arguments)
	got := h.elements(it.Iterator, &it.feed, most)
	if h.from != nil && len(got) > 1 && got[0] != "error" {
		c.seen.second++
	}
	if saves && it.Idle() && len(got) > 1 {
		// The stream begins again, and continues after some elements in another iterator.
		saved = true
		c.begin(it, arguments)
		again := elementsOf(it.Iterator, min(3, len(got)-1))
		state := savedState(t, it.Iterator)
		it.Close()
		it = c.newIterator(h, false)
		c.pooled[key] = it
		if err := it.Restore(state); err != nil {
			t.Fatal(err)
		}
		if again = append(again, elementsOf(it.Iterator, most-len(again))...); fmt.Sprintf("%q", again) != fmt.Sprintf("%q", got) {
			t.Fatalf("restored: %d elements %.300q\nbefore: %d elements %.300q", len(again), again, len(got), got)
		}
		c.seen.restored++
	}
	if !it.Idle() {
		it.Close()
		delete(c.pooled, key)
	}
	if template, err := pooled.NewTemplate(h.serialised); err == nil && template.WhyNotInline() == nil {
		it := c.inline[key]
		if it == nil {
			it = c.newIterator(h, true)
			c.inline[key] = it
			c.seen.inline++
		}
		c.begin(it, arguments)
		if there := h.elements(it.Iterator, &it.feed, most); fmt.Sprintf("%q", there) != fmt.Sprintf("%q", got) {
			t.Fatalf("inline %d elements %.300q\nparallel %d elements %.300q", len(there), there, len(got), got)
		}
		if !it.Idle() {
			it.Close()
			delete(c.inline, key)
		}
	}
	types, err := dataset.OutputTypes(h.serialised)
	if err != nil {
		t.Fatal(err)
	}
	own, err := h.runtime.NewIterator(h.serialised, types)
	if err != nil {
		t.Skip(err)
	}
	defer own.Close()
	if want := h.elements(own, h.own, most); fmt.Sprintf("%q", got) != fmt.Sprintf("%q", want) {
		t.Fatalf("pooled %d elements %.300q\nown %d elements %.300q", len(got), got, len(want), want)
	}
	return saved
}

// comparePooled runs streams of a dataset in their own iterators, in pooled ones and inline, and one of them from a
// checkpoint on. It returns whether they are pooled.
func comparePooled(t *testing.T, runtime, pulling *tf.Context, file string, options *pecanv1.JobOptions, seen *seen) bool {
	const streams = 2
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	g, err := graph.Parse(data, graph.PeerLimits())
	if err != nil {
		t.Skip(err)
	}
	plan, err := split.MakePlan(g, options, split.Env{})
	if err != nil {
		t.Skip(err)
	}
	if plan.GetWritesFiles() {
		t.Skip("the dataset writes files")
	}
	saves := plan.GetResume().GetCheckpoints()
	c := &comparison{t: t, pooled: map[pooled.Key]*pooledIterator{}, inline: map[pooled.Key]*pooledIterator{}, seen: seen}
	defer c.close()
	var own feed
	handle := tf.RegisterSource(&own)
	defer tf.RemoveSource(handle)
	for epoch := range uint64(2) {
		for stream := range min(int(plan.GetNumStreams()), streams) {
			for _, start := range []uint64{0, 2} {
				at := rewrite.At{Stream: stream, Epoch: epoch, Seed: 7, Mode: options.GetMode(), Source: -1, Start: start, Meters: fmt.Sprintf("own_%s_%d", t.Name(), epoch*100+uint64(stream))}
				if plan.GetBatchStrategy() == pecanv1.BatchStrategy_BATCH_STRATEGY_CLOSING {
					at.Source = handle
				}
				strategy := plan.GetResume().GetStrategy()
				if start > 0 && (epoch > 0 || strategy == pecanv1.Resume_RECOMPUTE) {
					continue
				}
				graphs, err := rewrite.Instantiate(g, plan, at)
				if err != nil {
					t.Skip(err)
				}
				if start > 0 && strategy == pecanv1.Resume_PARTIAL {
					seen.partial++
				}
				if c.compare(half{serialised: graphs.A, runtime: runtime}, saves) {
					saves = false
				}
				if graphs.B == nil {
					continue
				}
				types, err := dataset.OutputTypes(graphs.A)
				if err != nil {
					t.Fatal(err)
				}
				c.compare(half{graphs.B, pulling, func() *relay {
					first, err := runtime.NewIterator(graphs.A, types)
					if err != nil {
						t.Fatal(err)
					}
					// The short last batch passes too, because few of these streams have a full one.
					return &relay{from: first}
				}, &own}, false)
			}
		}
	}
	t.Logf("%d templates", len(c.pooled))
	return true
}
