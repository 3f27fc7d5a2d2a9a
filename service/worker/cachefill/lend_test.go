package cachefill

import (
	"encoding/binary"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/pecan-ml/pecan/native/tf"
	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/graph"
	"github.com/pecan-ml/pecan/service/graph/rewrite"
	"github.com/pecan-ml/pecan/service/graph/split"
)

// counted is a Source whose calls by the op are counted.
type counted struct {
	*Source
	pulls atomic.Int32
}

func (c *counted) PullOrLend(loan *tf.Loan) ([]*tf.Tensor, error) {
	c.pulls.Add(1)
	return c.Source.PullOrLend(loan)
}

// The op fetches all elements of a part but the first by itself. The graph downstream gets the same elements, and the segments are
// the same, as if each element came through Go. What was fetched when the stream stops is released.
func TestTheOpFetchesElementsOfTheUpstreamGraph(t *testing.T) {
	d, runtime := directory(t)
	data, err := os.ReadFile(filepath.Join("..", "..", "graph", "testdata", "cached.pb"))
	if err != nil {
		t.Fatal(err)
	}
	parsed, err := graph.Parse(data, graph.PeerLimits())
	if err != nil {
		t.Fatal(err)
	}
	plan, err := split.MakePlan(parsed, &pecanv1.JobOptions{}, split.Env{})
	if err != nil {
		t.Fatal(err)
	}
	plan = proto.Clone(plan).(*pecanv1.Plan)
	plan.Cache.Packed = false
	lender := new(counted)
	at := rewrite.At{Epoch: 1, Mode: plan.GetMode(), Source: -1, Cached: plan.GetCache(), CacheSource: tf.RegisterSource(lender), Job: "job"}
	defer tf.RemoveSource(at.CacheSource)
	graphs := func(part uint32) (*rewrite.StreamGraphs, error) {
		at := at
		at.Part = &part
		return rewrite.Instantiate(parsed, plan, at)
	}
	whole, err := rewrite.Instantiate(parsed, plan, at)
	if err != nil {
		t.Fatal(err)
	}
	direct := source(t, d, plan, whole, nil)
	begin(t, direct, &computed{runtime: runtime, graphs: graphs})
	want, segments := numbers(t, direct), writtenBy(direct)
	downstream, err := tf.NewContext(tf.ContextOptions{InterOpThreads: 4, IntraOpThreads: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer downstream.Close()
	before := tf.LiveTensors()
	for _, all := range []bool{true, false} {
		lender.Source = source(t, d, plan, whole, nil)
		begin(t, lender.Source, &computed{runtime: runtime, graphs: graphs})
		it, closeIt, err := open(downstream, whole.A)
		if err != nil {
			t.Fatal(err)
		}
		var got []uint64
		for len(got) == 0 || all {
			tensors, err := it.Next()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			for data := tensors[0].Data(); len(data) > 0; data = data[8:] {
				// The graph doubles the elements.
				got = append(got, binary.LittleEndian.Uint64(data)/2)
			}
			tf.ReleaseAll(tensors)
		}
		closeIt()
		if all {
			written := writtenBy(lender.Source)
			same := slices.EqualFunc(written, segments, func(a, b *pecanv1.CacheSegment) bool {
				return a.Part == b.Part && a.Elements == b.Elements && a.Bytes == b.Bytes && a.Checksum == b.Checksum
			})
			if !slices.Equal(got, want) || !same || len(written) != len(whole.Parts) {
				t.Errorf("%d of %d elements; segments %v, want %v", len(got), len(want), written, segments)
			}
			// The graph's parallel steps may pull a few times more after the end.
			if n := int(lender.pulls.Load()); n > len(whole.Parts)+5 {
				t.Errorf("the op called %d times for %d elements in %d parts", n, len(got), len(whole.Parts))
			}
		}
		lender.Close()
	}
	if now := tf.LiveTensors(); now != before {
		t.Errorf("%d tensors leaked", now-before)
	}
}
