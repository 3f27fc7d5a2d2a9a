package cachefill

import (
	"slices"
	"testing"

	"github.com/pecan-ml/pecan/native/tf"
	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"google.golang.org/protobuf/proto"
)

// What a part keeps back comes once, whether its segment is written, read, or found invalid. It has the dtype of the batch and
// not the dtype of the cached step.
func TestWhatAPartKeepsBackComesOnce(t *testing.T) {
	d, runtime := directory(t)
	plan, whole, graphs := cached(t)
	short := func() [][]*tf.Tensor {
		batch, err := tf.NewTensor(tf.UInt8, []int64{3}, []byte("abc"))
		if err != nil {
			t.Fatal(err)
		}
		return [][]*tf.Tensor{{batch}}
	}
	from := &computed{runtime: runtime, graphs: graphs, kept: short()}
	run := func(segments []*pecanv1.CacheSegment) (*Source, []uint64, string) {
		kept, s := "", source(t, d, plan, whole, segments)
		s.KeepRemainder = func(batch []*tf.Tensor) {
			kept += inWords(batch)
			tf.ReleaseAll(batch)
		}
		begin(t, s, from)
		return s, numbers(t, s), kept
	}
	writing, want, written := run(nil)
	if written == "" {
		t.Fatal("the run that writes keeps nothing")
	}
	segments := writtenBy(writing)
	_, got, kept := run(segments)
	if !slices.Equal(got, want) || kept != written || len(from.opened) != len(whole.Parts) {
		t.Errorf("%v and %q are read, %v and %q were written; computed %v", got, kept, want, written, from.opened)
	}
	changed := proto.Clone(segments[0]).(*pecanv1.CacheSegment)
	changed.Source = "other files"
	from.kept = short()
	if _, got, kept = run(append([]*pecanv1.CacheSegment{changed}, segments[1:]...)); !slices.Equal(got, want) || kept != written {
		t.Errorf("%v and %q are computed again, want %v and %q", got, kept, want, written)
	}
}
