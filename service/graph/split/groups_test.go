package split

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	tf "github.com/pecan-ml/pecan/proto/tensorflow"
	"github.com/pecan-ml/pecan/service/graph/nodedef"
)

// sharesOf lists the blocks of each stream of a plan over a source of n blocks.
func sharesOf(n int64, plan *pecanv1.Plan, shuffled bool, seed, epoch uint64) [][]int64 {
	d := Division{edgeSet: edgeSet{splitCount: n}}
	shares := make([][]int64, plan.NumStreams)
	for s := range shares {
		share := shareIn(d, plan, EpochStream{Stream: s, Epoch: epoch, Seed: seed}, shuffled)
		for block := share.First; block < min(n, share.Stop); block += share.Step {
			shares[s] = append(shares[s], block)
		}
	}
	return shares
}

// inTurn reads the streams of a group in turn to their end, then those of the next group.
func inTurn(shares [][]int64, group int) (read []int64) {
	for at := 0; at < len(shares); at += group {
		streams := slices.Clone(shares[at:min(at+group, len(shares))])
		for i := 0; ; i++ {
			before := len(read)
			for _, s := range streams {
				if i < len(s) {
					read = append(read, s[i])
				}
			}
			if len(read) == before {
				break
			}
		}
	}
	return read
}

func TestEachBlockIsInExactlyOneStream(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 400 {
		streams := 1 + rng.Int64N(1024)
		blocks := streams + rng.Int64N(4000)
		shuffled, epoch, seed := rng.IntN(2) == 0, rng.Uint64N(5), rng.Uint64()
		plan := &pecanv1.Plan{NumStreams: int32(streams), Group: int32(workload{}.group(streams))}
		shares := sharesOf(blocks, plan, shuffled, seed, epoch)
		read := inTurn(shares, defaultGroup)
		what := fmt.Sprintf("%d blocks in %d streams, shuffled %v", blocks, streams, shuffled)
		if !shuffled && (plan.Group > 0 || streams == defaultGroup) && !slices.IsSorted(read) {
			t.Errorf("%s: the groups in turn do not give the local order", what)
		}
		slices.Sort(read)
		for i, block := range read {
			if block != int64(i) {
				t.Fatalf("%s: block %d is missing or twice", what, i)
			}
		}
		if len(read) != int(blocks) {
			t.Errorf("%s: %d blocks were read", what, len(read))
		}
		for s, share := range shares {
			if len(share) == 0 {
				t.Fatalf("%s: stream %d is empty", what, s)
			}
		}
	}
}

func TestEachEpochReadsItsStreamsInAnotherOrder(t *testing.T) {
	plan := &pecanv1.Plan{NumStreams: 100, Group: 16}
	first, again, later := sharesOf(100, plan, true, 7, 1), sharesOf(100, plan, true, 7, 1), sharesOf(100, plan, true, 7, 2)
	if !slices.EqualFunc(first, again, slices.Equal) {
		t.Error("the same epoch has two orders")
	}
	if slices.EqualFunc(first, later, slices.Equal) {
		t.Error("two epochs have the same order")
	}
	same := func() bool {
		return slices.EqualFunc(sharesOf(100, plan, true, 7, 1), sharesOf(100, plan, true, 7, 2), slices.Equal)
	}
	plan.CacheCandidates = []*pecanv1.CacheCandidate{{Name: "decoded"}}
	if same() {
		t.Error("a candidate changes which shares the streams read")
	}
	plan.CacheCandidates[0].Freezes = true
	if !same() {
		t.Error("a stream reads another share in each epoch, so its elements get other random values")
	}
	plan.Cache, plan.CacheCandidates = &pecanv1.CachePlan{}, nil
	if !same() {
		t.Error("a stream reads another share of a cache in each epoch")
	}
}

// A segment of a cache that is not stored by parts belongs to a share. Its number says which blocks a stream reads, in every epoch.
func TestTheNumberOfAShareSaysWhatAStreamReads(t *testing.T) {
	for _, plan := range []*pecanv1.Plan{
		{NumStreams: 100, Group: 16, Shuffled: true}, {NumStreams: 100, Group: 16}, {NumStreams: 10, Shuffled: true},
		{NumStreams: 100, Group: 16, Shuffled: true, CacheCandidates: []*pecanv1.CacheCandidate{{Freezes: true}}},
	} {
		read, moved := map[uint32][]int64{}, false
		for epoch := range uint64(3) {
			for stream, blocks := range sharesOf(1000, plan, plan.Shuffled, 7, epoch) {
				share := PartsOf(plan, &pecanv1.CachePlan{}, EpochStream{Stream: stream, Epoch: epoch, Seed: 7})[0]
				moved = moved || int(share) != stream
				if before, known := read[share]; known && !slices.Equal(before, blocks) {
					t.Fatalf("%v: share %d has blocks %v in epoch %d, and %v before", plan, share, blocks, epoch, before)
				}
				read[share] = blocks
			}
		}
		if len(read) != int(plan.NumStreams) || moved != (plan.Group > 0 && plan.Shuffled && len(plan.CacheCandidates) == 0) {
			t.Errorf("%v: %d shares, another order in each epoch: %v", plan, len(read), moved)
		}
	}
}

func TestAPermutationHoldsEachNumberOnce(t *testing.T) {
	for _, n := range []int64{1, 2, 3, 16, 17, 100, 1024, 5000} {
		seen := make([]bool, n)
		for i := range n {
			seen[permuted(i, n, 3, 4)] = true
		}
		if slices.Contains(seen, false) {
			t.Errorf("a permutation of %d numbers has gaps", n)
		}
	}
	// Tokens depend on these numbers.
	if got := []int64{permuted(0, 1000, 7, 1), permuted(1, 1000, 7, 1), permuted(999, 1000, 7, 2)}; !slices.Equal(got, []int64{603, 120, 958}) {
		t.Errorf("the permutation has changed: %v", got)
	}
}

func TestTheNumberOfRowsOfAShareFitsItsRanges(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	for range 2000 {
		rows, block := rng.Int64N(200), 1+rng.Int64N(9)
		share := Share{First: rng.Int64N(12), Step: 1 + rng.Int64N(12), Stop: noStop}
		if rng.IntN(2) == 0 {
			share.Stop = share.First + 1 + rng.Int64N(20)
		}
		listed := int64(0)
		for _, part := range shareRanges(rows, block, share) {
			listed += part[1] - part[0]
		}
		if counted := shareRows(rows, block, share); counted != listed {
			t.Fatalf("%d rows in blocks of %d: %+v counts %d and lists %d", rows, block, share, counted, listed)
		}
	}
	part, ok := selectTensorRows(&tf.TensorProto{Dtype: tf.DataType_DT_INT64, TensorShape: nodedef.Shape(6), Int64Val: []int64{0, 1, 2, 3, 4, 5}}, Edge{block: 1}.rows(6, Share{First: 1, Step: 2, Stop: 4}))
	if !ok || !slices.Equal(part.Int64Val, []int64{1, 3}) {
		t.Errorf("share %v", part)
	}
}
