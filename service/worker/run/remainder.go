package run

import (
	"github.com/pecan-ml/pecan/native/tf"
	"github.com/pecan-ml/pecan/proto/reason"
	"github.com/pecan-ml/pecan/service/worker/payload"
	"github.com/pecan-ml/pecan/service/worker/profile"
	"github.com/pecan-ml/pecan/service/worker/window"
)

// relay is the source of a stream's second graph. Full batches of the first graph pass; the short last batch is
// kept back for the closing stream. TensorFlow calls Pull from its own thread. A stop cancels the first
// iterator, which ends Pull.
type relay struct {
	keep      func(batch []*tf.Tensor)
	from      *tf.Iterator
	batchRows int64
}

func newRelay(r *run) *relay { return &relay{keep: r.keepRemainder} }

// Pull implements tf.Source.
func (r *relay) Pull() ([]*tf.Tensor, error) {
	for {
		batch, err := r.from.Next()
		if err != nil {
			return nil, err
		}
		if r.batchRows == 0 || payload.Rows(batch) >= r.batchRows {
			return batch, nil
		}
		r.keep(batch)
	}
}

// keepRemainder keeps one short batch back for the closing stream.
func (r *run) keepRemainder(batch []*tf.Tensor) {
	kept := r.stream.remainderWindow(r)
	if kept == nil {
		tf.ReleaseAll(batch)
		return
	}
	body := payload.NewSingle(batch)
	r.mu.Lock()
	r.status.remainderRows += uint64(payload.Rows(batch))
	r.remainderCounts.Add(profile.Counts{Elements: 1, Out: body.Parts.Raw})
	r.mu.Unlock()
	first, _, _ := kept.Load()
	kept.Append(window.NewEntry(first, 1, int64(body.Parts.Raw), body))
}

// dropRemainder drops what the run kept back, because it begins again.
func (r *run) dropRemainder() {
	s := r.stream
	s.mu.Lock()
	if s.run == r && !s.stopped && s.remainder != nil {
		if reader := s.remainder.Close(); reader != nil {
			reader.Refuse(reason.New(reason.Closed, "stream %d begins again", s.key.Stream))
		}
		s.remainder = window.NewRemainder(&s.streams.windowBytes)
	}
	s.mu.Unlock()
	r.mu.Lock()
	r.status.remainderRows, r.remainderCounts = 0, profile.Counts{}
	r.mu.Unlock()
}
