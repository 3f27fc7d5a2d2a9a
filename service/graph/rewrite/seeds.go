package rewrite

import (
	"crypto/sha256"
	"encoding/binary"
	"math"

	tf "github.com/pecan-ml/pecan/proto/tensorflow"
	"github.com/pecan-ml/pecan/service/graph/analysis"
)

// seedStep sets the two seeds that a dataset op takes as inputs.
func (e *editor) seedStep(n *tf.NodeDef, place position) {
	if !e.takesSeeds(n) {
		return
	}
	seed, ok1 := e.g.InputInt(n, "seed")
	seed2, ok2 := e.g.InputInt(n, "seed2")
	if !ok1 || !ok2 {
		return
	}
	place.start = 0
	a, b := e.seedPair(n, place, seed, seed2, n.GetName())
	if a == seed && b == seed2 {
		return
	}
	e.SetInput(n.GetName(), "seed", e.AddInt("pecan_seed/"+n.GetName(), a))
	e.SetInput(n.GetName(), "seed2", e.AddInt("pecan_seed2/"+n.GetName(), b))
}

func (e *editor) takesSeeds(n *tf.NodeDef) bool {
	return e.g.Ops().IsDataset(n.GetOp()) && e.g.InputIndex(n, "seed") >= 0 && e.g.InputIndex(n, "seed2") >= 0
}

// seedPair returns the seeds of an op. The op's attributes may exclude the epoch from them.
func (e *editor) seedPair(n *tf.NodeDef, place position, seed, seed2 int64, path string) (int64, int64) {
	if e.plan.off && (seed != 0 || seed2 != 0) {
		place.upstreamOfCut = true
	} else if e.plan.off {
		place.upstreamOfCut = false
	}
	return e.seeds.seeds(place, seed, seed2, path, analysis.FixedSeeds(n))
}

// position is the position of a seeded op in a stream graph.
type position struct {
	// upstreamOfCut is set if the op is upstream of the cut, where all streams must draw the same values.
	upstreamOfCut bool
	// upstreamOfCache is set if the op is upstream of a cache or snapshot, whose elements must not depend on the epoch.
	upstreamOfCache bool
	// start is the index at which the stream begins, for a step that does not get earlier elements. It changes
	// the seeds. With the same seeds, random ops would draw the values of the first elements again.
	start uint64
}

// seedSource derives the seeds of every op of a stream graph. It is a pure function of its arguments.
type seedSource struct {
	job    uint64
	epoch  uint64
	stream uint64
}

// seeds derives the two seeds of an op. The user's seeds are hashed with the stream and the epoch, never with
// the op's path, so that two shuffles with equal seeds stay aligned. Upstream of the cut and in the first epoch
// the user's seeds stay, so a local run has the same values. Without seeds of the user, the job's seed and
// the op's path are hashed. The path does not change with the order of the steps. fixed excludes the epoch
// (reshuffle_each_iteration=False).
func (s seedSource) seeds(place position, seed, seed2 int64, path string, fixed bool) (int64, int64) {
	own := seed != 0 || seed2 != 0
	byEpoch := !place.upstreamOfCache && !fixed
	if own && place.upstreamOfCut && (s.epoch == 0 || !byEpoch) {
		return seed, seed2
	}
	h := sha256.New()
	var buf []byte
	if own {
		buf = append(buf, "pecan user seed 1"...)
		buf = binary.BigEndian.AppendUint64(buf, uint64(seed))
		buf = binary.BigEndian.AppendUint64(buf, uint64(seed2))
	} else {
		buf = append(buf, "pecan job seed 1"...)
		buf = binary.BigEndian.AppendUint64(buf, s.job)
		buf = append(buf, path...)
	}
	buf = append(buf, 0)
	if byEpoch {
		buf = binary.BigEndian.AppendUint64(append(buf, 'e'), s.epoch)
	}
	if !place.upstreamOfCut {
		buf = binary.BigEndian.AppendUint64(append(buf, 's'), s.stream)
	}
	if place.start > 0 {
		buf = binary.BigEndian.AppendUint64(append(buf, 'i'), place.start)
	}
	h.Write(buf)
	sum := h.Sum(nil)
	a := int64(binary.BigEndian.Uint64(sum) & math.MaxInt64)
	b := int64(binary.BigEndian.Uint64(sum[8:]) & math.MaxInt64)
	if a == 0 && b == 0 {
		// Two zeros mean "no seed" in TensorFlow.
		b = 1
	}
	return a, b
}

// drawKey derives the key of a stateless random op from the two derived seeds of the stateful op.
func drawKey(seed, seed2 int64) uint64 {
	buf := binary.BigEndian.AppendUint64([]byte("pecan key 1"), uint64(seed))
	sum := sha256.Sum256(binary.BigEndian.AppendUint64(buf, uint64(seed2)))
	return binary.BigEndian.Uint64(sum[:])
}
