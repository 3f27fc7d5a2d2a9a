package run

import (
	"io"
	"time"

	"github.com/pecan-ml/pecan/native/tf"
	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
)

// joiner is the source of the closing stream: the remainders of streams 0 to S-1, in stream order. It fetches
// each from the worker that holds it, as soon as the dispatcher reports that it is ready.
type joiner struct {
	run *run
	// next is the stream whose remainder comes next. ready is what was fetched of the one before.
	next  uint32
	ready [][]*tf.Tensor
}

// The delay between two attempts to fetch a remainder grows between these bounds.
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
		command, _ := j.run.stream.current()
		if int64(j.next) >= int64(command.GetPlan().GetNumStreams()) {
			return nil, io.EOF
		}
		if err := j.fetch(); err != nil {
			return nil, err
		}
		j.next++
	}
}

// fetch gets the remainder of stream j.next. It waits until there is one, and retries for as long as the stream
// lives: the dispatcher runs a lost stream elsewhere and then sends its new place.
func (j *joiner) fetch() error {
	pause := firstRetry
	for {
		command, changed := j.run.stream.current()
		from := remainderOf(command, j.next)
		if from.GetReady() && from.GetRows() == 0 {
			return nil
		}
		var retry <-chan time.Time
		if from.GetReady() {
			batches, err := j.run.stream.streams.fetchRemainder(j.run.ctx, command, from)
			if err == nil {
				j.ready = batches
				return nil
			}
			j.run.stream.log.Warn("fetching a remainder failed", "of_stream", j.next, "worker", from.GetWorker().GetWorkerId(), "error", err)
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

func remainderOf(command *pecanv1.StartStream, stream uint32) *pecanv1.RemainderSource {
	for _, source := range command.GetRemainders() {
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
