package pecanv1

import (
	"fmt"
	"strings"
)

// HasClosing reports whether the epochs of the plan have a closing stream. It comes after the numbered streams.
func (p *Plan) HasClosing() bool {
	strategy := p.GetBatchStrategy()
	return strategy == BatchStrategy_BATCH_STRATEGY_REMAINDER || strategy == BatchStrategy_BATCH_STRATEGY_CLOSING
}

// StreamKey is a StreamId as a comparable value.
type StreamKey struct {
	Job    string
	Epoch  uint64
	Stream uint32
}

// Key returns the key of the stream.
func (x *StreamId) Key() StreamKey {
	return StreamKey{x.GetJobId(), x.GetEpoch(), x.GetStream()}
}

// ID returns the message of the key.
func (k StreamKey) ID() *StreamId {
	return &StreamId{JobId: k.Job, Epoch: k.Epoch, Stream: k.Stream}
}

// String names the stream for messages.
func (k StreamKey) String() string {
	return fmt.Sprintf("stream %d of epoch %d of job %s", k.Stream, k.Epoch, k.Job)
}

// Add adds the counts of more to r.
func (r *Recovery) Add(more *Recovery) {
	r.Recomputed += more.GetRecomputed()
	r.Started += more.GetStarted()
	r.Restored += more.GetRestored()
	r.Saved += more.GetSaved()
	r.NotSaved += more.GetNotSaved()
	r.Damaged += more.GetDamaged()
}

// ShapeFits reports whether a component of this spec may have the shape. A negative size in the spec fits any size.
func ShapeFits[Size int64 | uint64](c *ComponentSpec, shape []Size) bool {
	if c.GetUnknownRank() {
		return true
	}
	if len(shape) != len(c.GetDims()) {
		return false
	}
	for i, want := range c.GetDims() {
		if want >= 0 && shape[i] != Size(want) {
			return false
		}
	}
	return true
}

// ShapeText is the shape of the spec for messages.
func (c *ComponentSpec) ShapeText() string {
	if c.GetUnknownRank() {
		return "unknown"
	}
	return fmt.Sprint(c.GetDims())
}

// Word returns the value of an enum as people write it: in lower case, without the enum's prefix.
func Word(value fmt.Stringer, prefix string) string {
	return strings.ToLower(strings.TrimPrefix(value.String(), prefix))
}
