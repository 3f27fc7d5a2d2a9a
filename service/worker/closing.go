package worker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/pecan-ml/pecan/native/tf"
	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/proto/reason"
)

// relay is the source of a stream's second graph: full batches of the first graph pass, the short last one is held back
// for the closing stream. TensorFlow calls Pull from a thread of its own; a stop ends the first iterator, and with it Pull.
type relay struct {
	run       *run
	from      *tf.Iterator
	batchRows int64
}

func newRelay(r *run) *relay { return &relay{run: r} }

// Pull implements tf.Source.
func (s *relay) Pull() ([]*tf.Tensor, error) {
	for {
		batch, err := s.from.Next()
		if err != nil {
			return nil, err
		}
		if s.batchRows == 0 || rowsOf(batch) >= s.batchRows {
			return batch, nil
		}
		s.run.keep(batch)
	}
}

// joiner is the source of the closing stream: what streams 0 to S-1 held back, in stream order. It fetches each from the
// worker that holds it, as soon as the dispatcher says that it is there.
type joiner struct {
	run *run
	// next is the stream whose remainder comes next, ready what was fetched of the one before.
	next  uint32
	ready [][]*tf.Tensor
}

// Pauses between two attempts to fetch a remainder.
const (
	firstRetry = 50 * time.Millisecond
	lastRetry  = 2 * time.Second
)

// Pull implements tf.Source.
func (j *joiner) Pull() ([]*tf.Tensor, error) {
	for {
		if len(j.ready) > 0 {
			batch := j.ready[0]
			j.ready = j.ready[1:]
			return batch, nil
		}
		order, _ := j.run.stream.current()
		if int64(j.next) >= int64(order.GetPlan().GetNumStreams()) {
			return nil, io.EOF
		}
		if err := j.fetch(); err != nil {
			return nil, err
		}
		j.next++
	}
}

// fetch gets the remainder of stream j.next. It waits until there is one, and tries again for as long as the stream lives:
// the dispatcher runs a lost stream elsewhere and then says where.
func (j *joiner) fetch() error {
	pause := firstRetry
	for {
		order, changed := j.run.stream.current()
		from := remainderOf(order, j.next)
		if from.GetReady() && from.GetRows() == 0 {
			return nil
		}
		var retry <-chan time.Time
		if from.GetReady() {
			batches, err := j.run.stream.worker.fetchRemainder(j.run.ctx, order, from)
			if err == nil {
				j.ready = batches
				return nil
			}
			j.run.stream.log.Warn("fetch remainder", "of_stream", j.next, "worker", from.GetWorker().GetWorkerId(), "error", err)
			timer := time.NewTimer(pause)
			defer timer.Stop()
			retry, pause = timer.C, min(2*pause, lastRetry)
		}
		select {
		case <-j.run.ctx.Done():
			return tf.ErrCancelled
		case <-changed:
		case <-retry:
		}
	}
}

func remainderOf(order *pecanv1.StartStream, stream uint32) *pecanv1.RemainderSource {
	for _, source := range order.GetRemainders() {
		if source.GetStream() == stream {
			return source
		}
	}
	return nil
}

// drop releases what was fetched and not pulled.
func (j *joiner) drop() {
	for _, batch := range j.ready {
		tf.ReleaseAll(batch)
	}
	j.ready = nil
}

// fetchRemainder reads what a stream held back from the worker that ran it, which may be this one.
func (w *Worker) fetchRemainder(ctx context.Context, order *pecanv1.StartStream, from *pecanv1.RemainderSource) ([][]*tf.Tensor, error) {
	id := &pecanv1.StreamId{JobId: order.GetId().GetJobId(), Epoch: order.GetId().GetEpoch(), Stream: from.GetStream()}
	address := from.GetWorker().GetTcp()
	if from.GetWorker().GetWorkerId() == w.workerID() {
		address = w.localAddress()
	}
	if address == "" {
		return nil, errors.New("its worker has no address")
	}
	ctx, cancel := context.WithTimeout(ctx, remainderTimeout)
	defer cancel()
	batches, err := w.readRemainder(ctx, address, &pecanv1.DataHello{
		ClientId: "worker-" + w.workerID(), Version: w.config.Version, WorkerId: from.GetWorker().GetWorkerId(), ClusterId: w.clusterID(),
	}, &pecanv1.OpenStream{Id: id, Lease: from.GetLease(), Credit: 1 << 47, Remainder: true,
		PayloadChecksum: order.GetOptions().GetPayloadChecksum()})
	if err != nil {
		return nil, fmt.Errorf("read the remainder of stream %d from %s: %w", from.GetStream(), address, err)
	}
	rows := int64(0)
	for _, batch := range batches {
		rows += rowsOf(batch)
	}
	if rows != int64(from.GetRows()) {
		for _, batch := range batches {
			tf.ReleaseAll(batch)
		}
		return nil, reason.New(reason.Internal, "stream %d kept %d rows back, %d were expected", from.GetStream(), rows, from.GetRows())
	}
	return batches, nil
}
