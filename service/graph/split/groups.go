package split

import (
	"math"
	"slices"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/graph"
	"github.com/pecan-ml/pecan/service/graph/ops"
)

// An epoch of a plan with groups reads G streams at a time: group 0 to its end, then group 1, and so on. With a shuffle
// downstream of the cut, each stream has a sample of the whole source. The seed and the epoch decide the permutation that is
// the order of the streams. Without one, each group has a contiguous part of the source, so reading the groups in turn gives
// the order of a local run. If the length of the source is not known, its streams are samples too, in ascending order.

// defaultGroup is G of the plans that have groups: the number of streams that such an epoch has open together.
const defaultGroup = 16

// mixedGroup is G of plans without more streams than defaultGroup if a shuffle mixes their streams. It is smaller, so that
// workers that come during the epoch find streams to open.
const mixedGroup = 8

// group returns G for a number of streams; 0 if all of them are one group.
func (w workload) group(streams int64) int64 {
	switch {
	case streams > defaultGroup:
		return defaultGroup
	case streams > mixedGroup && w.mixes(streams):
		return mixedGroup
	}
	return 0
}

// mixes reports whether streams have to be open together so that an epoch is mixed as well as a local run. That is so
// only if a shuffle gets several elements of each split (w.buffer): neighbours in the source are then in one stream. In
// a small epoch, more iterators cost more than they are worth. What an earlier job measured does not count, so that
// jobs over one dataset have the same groups.
func (w workload) mixes(streams int64) bool {
	w.seconds = 0
	return w.buffer > 0 && !w.inTurn && w.worth(streams)
}

// Share is the part of a dataset that one stream reads: the blocks First, First+Step, and so on, below Stop.
type Share struct {
	First, Step, Stop int64
	// Mixed is set if the blocks come in an order that Key decides.
	Mixed bool
	Key   uint64
}

// noStop is the Stop of a share that ends where the dataset ends.
const noStop = math.MaxInt64

func (s Share) ends() bool { return s.Stop != noStop }

// Blocks lists the blocks of a share of a dataset that has a number of blocks, in the order in which the stream reads them.
func (s Share) Blocks(all int64) (blocks []int64) {
	count := int64(0)
	if end := min(all, s.Stop); s.First < end {
		count = (end-1-s.First)/s.Step + 1
	}
	for i := range count {
		if s.Mixed {
			i = permuted(i, count, s.Key, 0)
		}
		blocks = append(blocks, s.First+i*s.Step)
	}
	return blocks
}

// EpochStream is a stream in an epoch. Seed is that of the job.
type EpochStream struct {
	Stream      int
	Epoch, Seed uint64
}

// ShareOf returns the share that a stream reads in an epoch. root is the tree that was cut.
func (p *Planner) ShareOf(root *graph.Step, d Division, plan *pecanv1.Plan, of EpochStream) Share {
	return shareIn(d, plan, of, p.shufflesAfter(root, d))
}

func shareIn(d Division, plan *pecanv1.Plan, of EpochStream, shuffled bool) Share {
	streams, stream, group := int64(plan.GetNumStreams()), int64(of.Stream), int64(plan.GetGroup())
	switch {
	case group == 0:
		return Share{First: stream, Step: streams, Stop: noStop}
	case shuffled:
		return Share{First: shuffledShare(plan, of), Step: streams, Stop: noStop}
	case d.splitCount > maxDivided:
		return Share{First: stream, Step: streams, Stop: noStop}
	}
	first := stream / group * group
	below := min(first+group, streams)
	from := firstBlock(d.splitCount, streams, first)
	return Share{First: from + stream - first, Step: below - first, Stop: firstBlock(d.splitCount, streams, below)}
}

// shuffledShare returns the number of the share that a stream reads in an epoch of a plan with groups and a shuffle.
func shuffledShare(plan *pecanv1.Plan, of EpochStream) int64 {
	if !permutes(plan) {
		return int64(of.Stream)
	}
	return permuted(int64(of.Stream), int64(plan.GetNumStreams()), of.Seed, of.Epoch)
}

// movesShares reports whether a stream reads another share in each epoch.
func movesShares(plan *pecanv1.Plan) bool {
	return plan.GetGroup() > 0 && plan.GetShuffled() && permutes(plan)
}

// permutes reports whether streams may read other shares in each epoch. They may not if a stream writes files and reads them
// in a later epoch. They may not either if random values repeat in every epoch, because these depend on the stream. Whether
// the job uses its caches does not matter.
func permutes(plan *pecanv1.Plan) bool {
	return plan.GetCache() == nil && !plan.GetWritesFiles() && !slices.ContainsFunc(plan.GetCacheCandidates(), (*pecanv1.CacheCandidate).GetFreezes)
}

// firstBlock is the first block of a stream if every stream had one contiguous part, and the parts were as equal as
// possible.
func firstBlock(blocks, streams, stream int64) int64 {
	return blocks/streams*stream + min(stream, blocks%streams)
}

// shufflesAfter reports whether a shuffle is downstream of the cut.
func (p *Planner) shufflesAfter(root *graph.Step, d Division) (found bool) {
	eachTail(root, d, func(s *graph.Step) {
		found = found || s.Rule.Kind == ops.Shuffled && s.Node.GetOp() != "SnapshotDatasetV2"
	})
	return found
}

// permuted returns the place of number i in a permutation of 0 to n-1 that the seed and the epoch decide. It is a
// Feistel network over the smallest even number of bits that holds n. A result of n or above is permuted again.
// The numbers of streams in tokens depend on this function, so it never changes.
func permuted(i, n int64, seed, epoch uint64) int64 {
	half := 1
	for int64(1)<<(2*half) < n {
		half++
	}
	mask := uint64(1)<<half - 1
	key := mixed(mixed(seed) ^ epoch)
	for x := uint64(i); ; {
		left, right := x>>half, x&mask
		for round := range uint64(4) {
			left, right = right, left^mixed(key+round<<56+right)&mask
		}
		if x = left<<half | right; x < uint64(n) {
			return int64(x)
		}
	}
}

// mixed is the finalizer of SplitMix64.
func mixed(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
