package trial

import (
	"context"
	"time"

	"github.com/pecan-ml/pecan/service/graph/rewrite"

	"github.com/pecan-ml/pecan/native/tf"
	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/worker/dataset"
	"github.com/pecan-ml/pecan/service/worker/payload"
)

// pair is the two sides of a paired run: a stream in the registered order and in another one.
type pair [2]side

// side is a stream in one order, and the element that it produced last.
type side struct {
	it      *tf.Iterator
	closers []func()

	element []*tf.Tensor
	err     error
	cpu     time.Duration
}

// next produces the next element and measures its CPU.
func (s *side) next(threads *threads) {
	begun := threads.cpu()
	s.element, s.err = s.it.Next()
	s.cpu = threads.cpu() - begun
}

// release releases the last elements.
func (p *pair) release() {
	for i := range p {
		tf.ReleaseAll(p[i].element)
		p[i].element = nil
	}
}

func (p *pair) close() {
	for i := range p {
		for at := len(p[i].closers) - 1; at >= 0; at-- {
			p[i].closers[at]()
		}
	}
}

// openSide makes the iterator of a stream up to a step. The graph is serial and has no external effects.
func (t *trial) openSide(s *side, plan *pecanv1.Plan, stream int, last string) error {
	at := rewrite.At{
		Stream: stream, Epoch: 1, Seed: t.command.GetOptions().GetSeed(), Mode: t.command.GetOptions().GetMode(), Source: -1, Serial: true, Keyed: true,
		Job: "pecan_trial", LastStep: last,
	}
	var halves *trialRelay
	if plan.GetBatchStrategy() == pecanv1.BatchStrategy_BATCH_STRATEGY_CLOSING {
		halves = &trialRelay{rows: plan.GetBatchRows()}
		at.Source = tf.RegisterSource(halves)
		s.closers = append(s.closers, func() { tf.RemoveSource(at.Source) })
	}
	graphs, err := t.graphs.Instantiate(t.ctx, t.command.GetFingerprint(), plan, at)
	if err != nil {
		return err
	}
	if s.it, err = t.iterate(s, &t.contexts[0], graphs.A); err != nil || graphs.B == nil {
		return err
	}
	halves.from = s.it
	s.it, err = t.iterate(s, &t.contexts[1], graphs.B)
	return err
}

// context makes a context with one thread for functions, which both orders use by turns. With one thread each, they
// would also have one allocator each. The state of an allocator can make one of two equal iterators half as expensive
// again as the other.
func (t *trial) context(slot **tf.Context) (*tf.Context, error) {
	if *slot == nil {
		made, err := tf.NewContext(tf.ContextOptions{InterOpThreads: 1, IntraOpThreads: 1})
		if err != nil {
			return nil, err
		}
		*slot = made
	}
	return *slot, nil
}

// closeContexts frees the contexts, and the tables and variables of the graphs with them.
func (t *trial) closeContexts() {
	for _, made := range t.contexts {
		if made != nil {
			made.Close()
		}
	}
}

// iterate makes the iterator of a graph. It is closed with its side.
func (t *trial) iterate(s *side, slot **tf.Context, serialised []byte) (*tf.Iterator, error) {
	types, err := dataset.OutputTypes(serialised)
	if err != nil {
		return nil, err
	}
	runtime, err := t.context(slot)
	if err != nil {
		return nil, err
	}
	it, err := runtime.NewIterator(serialised, types)
	if err != nil {
		return nil, err
	}
	leave := context.AfterFunc(t.ctx, it.Cancel)
	s.closers = append(s.closers, func() {
		leave()
		it.Close()
	})
	return it, nil
}

// trialRelay passes batches from the first graph of a stream to its second. It drops short batches, which a
// closing stream would batch again.
type trialRelay struct {
	from *tf.Iterator
	rows int64
}

// Pull implements tf.Source.
func (r *trialRelay) Pull() ([]*tf.Tensor, error) {
	for {
		batch, err := r.from.Next()
		if err != nil || r.rows == 0 || payload.Rows(batch) >= r.rows {
			return batch, err
		}
		tf.ReleaseAll(batch)
	}
}
