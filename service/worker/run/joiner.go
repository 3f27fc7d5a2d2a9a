package run

import (
	"io"
	"time"

	"github.com/pecan-ml/pecan/native/tf"
	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
)

// joiner is the source of a closing stream: the remainders in the list of its command, in that order. It fetches each
// from the worker that holds it, as soon as the dispatcher reports that it is ready.
type joiner struct {
	run *run
	// next is the entry of the list that comes next. ready is what was fetched of the one before.
	next  int
	ready [][]*tf.Tensor
}

func newJoiner(r *run) *joiner { return &joiner{run: r} }

// The delay between two attempts to fetch a remainder grows between these bounds.
const (
	firstRetry = 50 * time.Millisecond
	lastRetry  = 2 * time.Second
)

// Pull implements tf.Source.
func (j *joiner) Pull() ([]*tf.Tensor, error) {
	j.run.releaseOpeningLock()
	for {
		if len(j.ready) > 0 {
			batch := j.ready[0]
			j.ready = j.ready[1:]
			return batch, nil
		}
		if j.next >= len(j.run.command.GetRemainders()) {
			return nil, io.EOF
		}
		if err := j.fetch(); err != nil {
			return nil, err
		}
		j.next++
	}
}

// fetch gets the remainder of entry j.next. It waits until there is one, and retries for as long as the stream lives. The
// dispatcher runs a lost stream elsewhere and then sends the stream's new place.
func (j *joiner) fetch() error {
	pause := firstRetry
	for {
		command, changed := j.run.stream.current()
		from := remainderAt(command, j.next)
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
			j.run.stream.log.Warn("fetching a remainder failed", "of_epoch", command.GetId().GetEpoch()-from.GetEpochsBefore(), "of_stream", from.GetStream(), "worker", from.GetWorker().GetWorkerId(), "error", err)
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

// remainderAt returns an entry of the list of a command. Every command for a stream has the same entries, and says where
// their streams are now.
func remainderAt(command *pecanv1.StartStream, entry int) *pecanv1.RemainderSource {
	if list := command.GetRemainders(); entry < len(list) {
		return list[entry]
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
