package epoch

import (
	"maps"
	"math/bits"
	"slices"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
)

// Bitmap is a set of streams, stream 0 in the lowest bit of the first byte.
type Bitmap []byte

// Has reports whether the stream is in the set.
func (b Bitmap) Has(stream uint32) bool {
	return int(stream/8) < len(b) && b[stream/8]>>(stream%8)&1 == 1
}

// Set adds a stream.
func (b *Bitmap) Set(stream uint32) {
	if grow := int(stream/8) + 1 - len(*b); grow > 0 {
		*b = append(*b, make([]byte, grow)...)
	}
	(*b)[stream/8] |= 1 << (stream % 8)
}

// clear removes a stream.
func (b Bitmap) clear(stream uint32) {
	if int(stream/8) < len(b) {
		b[stream/8] &^= 1 << (stream % 8)
	}
}

// Count returns the number of streams in the set.
func (b Bitmap) Count() int {
	n := 0
	for _, byte := range b {
		n += bits.OnesCount8(byte)
	}
	return n
}

// runs returns the set as gaps and lengths; false if these take at least as many bytes as limit.
func (b Bitmap) runs(limit int) (runs []uint32, ok bool) {
	in, since, size := false, uint32(0), 0
	add := func(until uint32) bool {
		n := until - since
		runs, since, in = append(runs, n), until, !in
		size += (bits.Len32(n|1) + 6) / 7
		return size < limit
	}
	for at := range b {
		if in && b[at] == 0xff || !in && b[at] == 0 {
			continue
		}
		for bit := range uint32(8) {
			if stream := uint32(at)*8 + bit; b.Has(stream) != in && !add(stream) {
				return nil, false
			}
		}
	}
	return runs, !in || add(uint32(len(b))*8)
}

// Progress is how far the streams of an epoch were read.
type Progress struct {
	// Next has the index of the next element of streams that have begun.
	Next map[uint32]uint64
	// Over has the streams of which nothing is left. It is used only in plans with groups.
	Over Bitmap
}

// NewProgress returns the progress that a position in an epoch with this many streams has recorded.
func NewProgress(position *pecanv1.Position, total uint32) (Progress, error) {
	p := Progress{Next: map[uint32]uint64{}}
	for stream, next := range position.GetNext() {
		p.Next[uint32(stream)] = next
	}
	if len(position.GetNext()) > 0 {
		return p, nil
	}
	streams, next, err := position.BegunStreams(total)
	if err != nil {
		return p, err
	}
	for i, stream := range streams {
		p.Next[stream] = next[i]
	}
	over, err := position.EndedStreams(total)
	p.Over = over
	return p, err
}

// Clone returns a copy.
func (p Progress) Clone() Progress { return Progress{maps.Clone(p.Next), slices.Clone(p.Over)} }

// Record puts the progress into a position of a plan with groups.
func (p Progress) Record(position *pecanv1.Position) {
	position.EndedRuns, position.EndedBits, position.Begun, position.BegunNext = nil, nil, nil, nil
	over := p.Over
	for len(over) > 0 && over[len(over)-1] == 0 {
		over = over[:len(over)-1]
	}
	if runs, ok := over.runs(len(over) + 1); ok {
		position.EndedRuns = runs
	} else {
		position.EndedBits = over
	}
	last := uint32(0)
	for _, stream := range slices.Sorted(maps.Keys(p.Next)) {
		if p.Next[stream] == 0 || over.Has(stream) {
			continue
		}
		position.Begun, last = append(position.Begun, stream-last), stream
		position.BegunNext = append(position.BegunNext, p.Next[stream])
	}
}
