package run

import (
	"fmt"
	"math/rand/v2"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pecan-ml/pecan/native/tf"
	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/graph"
	"github.com/pecan-ml/pecan/service/graph/pooled"
	"github.com/pecan-ml/pecan/service/graph/rewrite"
	"github.com/pecan-ml/pecan/service/graph/split"
	"github.com/pecan-ml/pecan/service/worker/window"
)

// The kind that was measured to be faster runs, and the other one gets few tries.
func TestTheFasterKindOfStepsRuns(t *testing.T) {
	for _, c := range []struct {
		name             string
		parallel, inline time.Duration
		least, most      int
	}{
		{"inline is faster", 40 * time.Millisecond, 20 * time.Millisecond, 88, 98},
		{"inline is slower", 40 * time.Millisecond, 60 * time.Millisecond, 3, 8},
		{"the streams are long", 2 * time.Second, time.Second, 0, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			p, inline := new(pace), 0
			for range 100 {
				if p.next() {
					inline++
					p.measured(true, 4, c.inline)
				} else {
					p.measured(false, 4, c.parallel)
				}
			}
			if inline < c.least || inline > c.most {
				t.Errorf("%d of 100 streams ran inline", inline)
			}
		})
	}
}

// A machine that becomes busy or idle does not keep the slower kind.
func TestThePaceFollowsChanges(t *testing.T) {
	p := new(pace)
	inline := 0
	for n := range 400 {
		took := 50 * time.Millisecond
		if n < 100 {
			took = 10 * time.Millisecond
		}
		if p.next() {
			inline++
			p.measured(true, 4, took)
		} else {
			p.measured(false, 4, 30*time.Millisecond)
		}
		if n == 99 && inline < 88 {
			t.Errorf("%d of the first 100 streams ran inline", inline)
		}
	}
	if inline > 115 {
		t.Errorf("%d streams ran inline, though they became slower", inline)
	}
}

// Streams that read a medium take times that differ by more than the kinds of steps do. The better kind runs nevertheless.
func TestThePaceSeesThroughNoise(t *testing.T) {
	for _, c := range []struct {
		name        string
		inline      float64
		least, most int
	}{
		{"inline is faster", 0.85, 3650, 4000},
		{"no difference", 1, 2700, 4000},
		{"inline is slower", 1.5, 0, 250},
	} {
		t.Run(c.name, func(t *testing.T) {
			for seed := range uint64(200) {
				random := rand.New(rand.NewPCG(seed, 17))
				p, inline := new(pace), 0
				for n := range 4000 {
					// Up to twice as long as the shortest, and longer in the first streams and at the edge of an epoch.
					took := (0.7 + 0.7*random.Float64()) * float64(30*time.Millisecond)
					switch {
					case n%32 < 2:
						took *= 3
					case n < 32:
						took *= 2
					}
					if p.next() {
						inline++
						p.measured(true, 4, time.Duration(c.inline*took))
					} else {
						p.measured(false, 4, time.Duration(took))
					}
				}
				if inline < c.least || inline > c.most {
					t.Errorf("seed %d: %d of 4000 streams ran inline", seed, inline)
				}
			}
		})
	}
}

func TestAStreamWithoutElementsHasNoPace(t *testing.T) {
	p := new(pace)
	p.measured(false, 0, time.Second)
	if p.parallel.streams != 0 {
		t.Error("it counts")
	}
}

func TestStreamsThatWaitOrHaveEndedDoNotCompute(t *testing.T) {
	var all atomic.Int64
	s := &Stream{command: new(pecanv1.StartStream), run: &run{window: window.New(&all, nil, window.Start{})}}
	if !s.computes() {
		t.Error("a stream that begins does not compute")
	}
	s.command.Closing = true
	if s.computes() {
		t.Error("a closing stream computes")
	}
	s.command.Closing, s.run.status.ended = false, true
	if s.computes() {
		t.Error("a stream that has ended computes")
	}
}

// sumsGraph returns the graph of a stream of a dataset of sums, and its pooled form.
func sumsGraph(t *testing.T) (serialised []byte, key pooled.Key, arguments []pooled.Argument) {
	t.Helper()
	data, err := os.ReadFile("../../../native/tf/testdata/sums.graph")
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
	graphs, err := rewrite.Instantiate(g, plan, rewrite.At{Source: -1})
	if err != nil {
		t.Fatal(err)
	}
	if key, arguments, err = pooled.Separate(graphs.A); err != nil {
		t.Fatal(err)
	}
	return graphs.A, key, arguments
}

// Without a limit on its threads, an op gives other bits inline than on tf.data's own threads.
func TestInlineStepsKeepToTheirThread(t *testing.T) {
	runtime, err := tf.NewContext(tf.ContextOptions{InterOpThreads: 2, IntraOpThreads: 2})
	if err != nil {
		t.Fatal(err)
	}
	defer runtime.Close()
	serialised, _, arguments := sumsGraph(t)
	template, err := pooled.NewTemplate(serialised)
	if err != nil || template.WhyNotInline() != nil {
		t.Fatal(err, template.WhyNotInline())
	}
	elements := func(inline, keep bool) string {
		it, err := runtime.NewPooled(func(source int64) ([]byte, error) {
			return template.Graph(pooled.Names{Arguments: source, Inline: inline})
		}, []tf.DataType{tf.Float})
		if err != nil {
			t.Fatal(err)
		}
		defer it.Close()
		if keep {
			it.KeepToThread()
		}
		tensors, err := streamArguments(arguments)
		if err != nil {
			t.Fatal(err)
		}
		if err := it.Begin(tensors); err != nil {
			t.Fatal(err)
		}
		return fmt.Sprintf("%q", elementsOf(it, 1000))
	}
	want := elements(false, false)
	if got := elements(true, true); got != want {
		t.Errorf("inline: %s\nparallel: %s", got, want)
	}
	if elements(true, false) == want {
		t.Error("the sums do not depend on the number of threads, so this test shows nothing")
	}
}
