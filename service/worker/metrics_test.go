package worker

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/pecan-ml/pecan/service/graph/rewrite"
	"github.com/pecan-ml/pecan/service/graph/split"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/worker/dataset"
)

// registered is a planner that makes each stream from a whole registered graph, as a worker does.
type registered struct{ *dataset.Store }

func (r registered) Instantiate(ctx context.Context, fingerprint string, _ *pecanv1.Plan, at rewrite.At) (*rewrite.StreamGraphs, error) {
	parsed, err := r.Get(ctx, fingerprint)
	if err != nil {
		return nil, err
	}
	at.Mode = pecanv1.Mode_MODE_OFF
	plan, err := split.MakePlan(parsed, &pecanv1.JobOptions{Mode: at.Mode}, split.Env{})
	if err != nil {
		return nil, err
	}
	return rewrite.Instantiate(parsed, plan, at)
}

func newRegistered() registered {
	return registered{dataset.NewStore(func(_ context.Context, name string) ([]byte, error) {
		return os.ReadFile(filepath.Join("testdata", name+".graph"))
	})}
}

// opAndCount is the op of a step and how many elements it produced.
type opAndCount struct {
	Op       string `json:"op"`
	Elements uint64 `json:"elements"`
}

var opSuffix = regexp.MustCompile(`Dataset(V[0-9]+)?$`)

// countsOf returns the metrics in a form that can be compared, because several steps may have one op.
func countsOf(nodes []*pecanv1.NodeMetrics) []string {
	var out []string
	for _, node := range nodes {
		out = append(out, fmt.Sprint(opSuffix.ReplaceAllString(node.GetOp(), ""), " ", node.GetElements()))
	}
	slices.Sort(out)
	return out
}

func expectedCounts(t *testing.T) map[string][]opAndCount {
	t.Helper()
	raw, err := os.ReadFile("testdata/figures.json")
	if err != nil {
		t.Fatal(err)
	}
	expected := map[string][]opAndCount{}
	if err := json.Unmarshal(raw, &expected); err != nil {
		t.Fatal(err)
	}
	return expected
}

// The metrics of each step are exact, however early tf.data drops its iterators.
func TestMetricsAreExact(t *testing.T) {
	for name, steps := range expectedCounts(t) {
		t.Run(name, func(t *testing.T) {
			var want []string
			for _, step := range steps {
				want = append(want, fmt.Sprint(step.Op, " ", step.Elements))
			}
			slices.Sort(want)
			w := startWorker(t, nil)
			useGraphs(w, newRegistered())
			o := startCommand(name)
			w.streams.Start(o)
			r := dialTCP(t, w)
			r.open(1, opening(o))
			r.stream(0)
			w.streams.Totals.Resend()
			nodes := w.streams.Totals.Unreported("job").GetNodes()
			if got := countsOf(nodes); !slices.Equal(got, want) {
				t.Errorf("figures are\n %s, want\n %s", strings.Join(got, ", "), strings.Join(want, ", "))
			}
			sum, in := uint64(0), uint64(0)
			for _, node := range nodes {
				t.Log(node)
				sum, in = sum+node.GetBytesOut(), in+node.GetBytesIn()
			}
			// The outermost step gives its elements to the trainer, all others give theirs to another step.
			if !slices.ContainsFunc(nodes, func(node *pecanv1.NodeMetrics) bool { return node.GetBytesOut() == sum-in }) {
				t.Errorf("%d bytes came out of the steps and %d went in", sum, in)
			}
		})
	}
}

// preset is a planner with one fixed graph.
type preset struct {
	dataset.Instantiator
	graph []byte
}

func (p preset) Instantiate(context.Context, string, *pecanv1.Plan, rewrite.At) (*rewrite.StreamGraphs, error) {
	return &rewrite.StreamGraphs{A: p.graph}, nil
}

// A step that reads ahead from a pipe without a writer keeps its iterator from closing. The metrics of other
// streams must not wait for it.
func TestMetricsAreReadWhileAnEndedStreamCannotBeClosed(t *testing.T) {
	pipe, err := os.ReadFile(filepath.Join("testdata", "pipe.graph"))
	if err != nil {
		t.Fatal(err)
	}
	t.Chdir(t.TempDir())
	if err := os.WriteFile("words", []byte(strings.Repeat("no number\n", 1000)), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mkfifo("pipe", 0o600); err != nil {
		t.Fatal(err)
	}
	w := startWorker(t, nil)
	useGraphs(w, preset{w.streams.Graphs, pipe})
	w.streams.Start(startCommand("pipe"))
	ended := make(chan struct{})
	go func() {
		w.running.Wait()
		close(ended)
	}()
	defer func() {
		// The reader of the pipe continues after this.
		for writer := (*os.File)(nil); ; time.Sleep(time.Millisecond) {
			select {
			case <-ended:
				if writer != nil {
					writer.Close()
				}
				return
			default:
			}
			if writer == nil {
				writer, _ = os.OpenFile("pipe", os.O_WRONLY|syscall.O_NONBLOCK, 0)
			} else if _, err := writer.WriteString("1\n"); err == nil {
				writer.Close()
				writer = nil
			}
		}
	}()
	waitFor(t, "the failure of the run", func() bool {
		load := w.streams.Load()
		return load.FailedStreams+load.FailedElements > 0
	})
	// The run closes its iterators meanwhile.
	select {
	case <-ended:
		t.Fatal("it was closed at once, which shows nothing")
	case <-time.After(100 * time.Millisecond):
	}
	looked := make(chan struct{})
	go func() {
		w.streams.Sample()
		close(looked)
	}()
	select {
	case <-looked:
	case <-time.After(20 * time.Second):
		t.Error("whoever reads figures waits for a stream that cannot be closed")
	}
}
