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
				if comparePooled(t, runtime, file, &pecanv1.JobOptions{Mode: mode}, &seen) {
					pooledGraphs++
				}
			})
		}
	}
	for _, random := range []string{"noise", "noise_sequential", "two_noises"} {
		t.Run(random+"/groups", func(t *testing.T) {
			// In a plan with one stream they draw from a state, so they have their own iterators.
			options := &pecanv1.JobOptions{Mode: pecanv1.Mode_MODE_EXACTLY_ONCE, Streams: 20}
			if !comparePooled(t, runtime, "../../graph/testdata/"+random+".pb", options, &seen) {
				t.Error("the streams have their own iterators")
			}
		})
	}
	t.Run("sums", func(t *testing.T) {
		before := seen
		comparePooled(t, runtime, "../../../native/tf/testdata/sums.graph", &pecanv1.JobOptions{}, &seen)
		if seen.inline == before.inline {
			t.Error("sums over several threads do not run inline")
		}
	})
	if pooledGraphs < 40 {
		t.Errorf("only %d datasets and modes have pooled streams", pooledGraphs)
	}
	if t.Logf("%d datasets and modes, %+v", pooledGraphs, seen); seen.restored < 20 || seen.inline < 20 {
		t.Errorf("too few datasets and modes were restored, or ran inline: %+v", seen)
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

// seen counts the datasets and modes that were restored, and the templates that ran inline.
type seen struct{ restored, inline int }

// comparePooled runs streams of a dataset in their own iterators, in pooled ones and inline, and one of them from a
// checkpoint on.
// It returns whether they are pooled.
func comparePooled(t *testing.T, runtime *tf.Context, file string, options *pecanv1.JobOptions, seen *seen) bool {
	const most, streams = 40, 2
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
	iterators, inline := map[pooled.Key]*tf.Iterator{}, map[pooled.Key]*tf.Iterator{}
	defer func() {
		for _, all := range []map[pooled.Key]*tf.Iterator{iterators, inline} {
			for _, it := range all {
				it.Close()
			}
		}
	}()
	for epoch := range uint64(2) {
		for stream := range min(int(plan.GetNumStreams()), streams) {
			for _, start := range []uint64{0, 2} {
				at := rewrite.At{Stream: stream, Epoch: epoch, Seed: 7, Mode: options.GetMode(), Source: -1, Start: start, Meters: fmt.Sprintf("own_%s_%d", t.Name(), epoch*100+uint64(stream))}
				if start > 0 && (epoch > 0 || plan.GetResume().GetStrategy() != pecanv1.Resume_SEEK) {
					continue
				}
				graphs, err := rewrite.Instantiate(g, plan, at)
				if err != nil {
					t.Skip(err)
				}
				key, arguments, err := pooled.Split(graphs.A)
				if err != nil {
					t.Skip(err)
				}
				types, err := dataset.OutputTypes(graphs.A)
				if err != nil {
					t.Fatal(err)
				}
				newIterator := func() *tf.Iterator {
					template, err := pooled.NewTemplate(graphs.A)
					if err != nil {
						t.Skip("private: ", err)
					}
					it, err := runtime.NewPooled(func(source int64) ([]byte, error) {
						return template.Graph(pooled.Names{Arguments: source, Meters: fmt.Sprintf("pooled_%s_%d", t.Name(), len(iterators))})
					}, types)
					if err != nil {
						t.Fatal(err)
					}
					return it
				}
				it := iterators[key]
				if it == nil {
					it = newIterator()
					iterators[key] = it
				}
				begin := func() {
					tensors, err := streamArguments(arguments)
					if err != nil {
						t.Fatal(err)
					}
					if err := it.Begin(tensors); err != nil {
						t.Fatal(err)
					}
				}
				begin()
				got := elementsOf(it, most)
				if saves && it.Idle() {
					// The stream begins again, and continues after some elements in another iterator.
					saves = false
					begin()
					again := elementsOf(it, min(3, len(got)-1))
					state := savedState(t, it)
					it.Close()
					it = newIterator()
					iterators[key] = it
					if err := it.Restore(state); err != nil {
						t.Fatal(err)
					}
					if again = append(again, elementsOf(it, most-len(again))...); fmt.Sprintf("%q", again) != fmt.Sprintf("%q", got) {
						t.Fatalf("restored: %d elements %.300q\nbefore: %d elements %.300q", len(again), again, len(got), got)
					}
					seen.restored++
				}
				if template, err := pooled.NewTemplate(graphs.A); err == nil && template.WhyNotInline() == nil {
					if inline[key] == nil {
						inline[key], err = runtime.NewPooled(func(source int64) ([]byte, error) {
							return template.Graph(pooled.Names{Arguments: source, Meters: fmt.Sprintf("inline_%s_%d", t.Name(), len(inline)), Inline: true})
						}, types)
						if err != nil {
							t.Fatal(err)
						}
						inline[key].KeepToThread()
						seen.inline++
					}
					tensors, err := streamArguments(arguments)
					if err != nil {
						t.Fatal(err)
					}
					if err := inline[key].Begin(tensors); err != nil {
						t.Fatal(err)
					}
					if there := elementsOf(inline[key], most); fmt.Sprintf("%q", there) != fmt.Sprintf("%q", got) {
						t.Fatalf("epoch %d, stream %d from %d: inline %d elements %.300q\nparallel %d elements %.300q", epoch, stream, start, len(there), there, len(got), got)
					}
					if !inline[key].Idle() {
						inline[key].Close()
						delete(inline, key)
					}
				}
				own, err := runtime.NewIterator(graphs.A, types)
				if err != nil {
					t.Skip(err)
				}
				want := elementsOf(own, most)
				own.Close()
				if fmt.Sprintf("%q", got) != fmt.Sprintf("%q", want) {
					t.Fatalf("epoch %d, stream %d from %d: pooled %d elements %.300q\nown %d elements %.300q", epoch, stream, start, len(got), got, len(want), want)
				}
				if !it.Idle() {
					it.Close()
					delete(iterators, key)
				}
			}
		}
	}
	t.Logf("%d templates", len(iterators))
	return true
}
