package client

import (
	"fmt"
	"time"

	"github.com/pecan-ml/pecan/native/client/epoch"
	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/proto/reason"
)

// asserts returns the asserted cardinality, and whether this iteration checks it. Only an iteration that
// reads the whole dataset can check it.
func (it *Iteration) asserts() (int64, bool) {
	promised := it.job.consumer.Plan.GetAssertedCardinality()
	return promised, it.readsWholePass() && promised >= -1 && !epoch.MayDiffer(it.job.consumer.Plan, it.job.consumer.Options)
}

// tooMany returns an error if more elements than asserted exist. The count is what was returned so far plus
// more.
func (it *Iteration) tooMany(more uint64) error {
	promised, checked := it.asserts()
	if !checked || promised < 0 || it.elements+more <= uint64(promised) {
		return nil
	}
	return reason.New(reason.Cardinality, "the dataset was expected to contain %s, but contains at least %s: correct the number given to "+
		"assert_cardinality()", count(promised), count(int64(it.elements+more)))
}

func (it *Iteration) tooFew() error {
	promised, checked := it.asserts()
	if !checked || promised >= 0 && it.elements >= uint64(promised) {
		return nil
	}
	return reason.New(reason.Cardinality, "the dataset was expected to contain %s, but contains only %s: correct the number given to "+
		"assert_cardinality()", count(promised), count(int64(it.elements)))
}

func count(n int64) string {
	switch n {
	case -1:
		return "an infinite number of elements"
	case 1:
		return "1 element"
	}
	return fmt.Sprintf("%d elements", n)
}

// Cardinality numbers of tf.data.
const (
	infiniteCardinality = -1
	unknownCardinality  = -2
)

// Cardinality returns how many elements each iteration returns, if all iterations return the same number. It
// is unknown for a shared job, and when each worker reads the whole dataset.
func Cardinality(plan *pecanv1.Plan, options *pecanv1.JobOptions, shared bool) int64 {
	pass, repeat := plan.GetCardinality(), plan.GetRepeat()
	switch {
	case pass == 0 || repeat == 0:
		return 0
	case pass == infiniteCardinality || repeat < 0 && pass != unknownCardinality || plan.GetCarry():
		return infiniteCardinality
	case !ExactCount(plan, options, shared):
		return unknownCardinality
	case pass < 0 || repeat < 0:
		return unknownCardinality
	case pass > (1<<62)/repeat:
		return unknownCardinality
	}
	return pass * repeat
}

// ExactCount reports whether one iteration returns as many elements as a local one, also when workers are
// lost. With sharding HINT the steps downstream of the hint count in each stream separately.
func ExactCount(plan *pecanv1.Plan, options *pecanv1.JobOptions, shared bool) bool {
	return !shared && !epoch.MayDiffer(plan, options) && options.GetMode() != pecanv1.Mode_MODE_OFF && options.GetSharding() != pecanv1.Sharding_SHARDING_HINT
}

// A consumer that counts does not ask for the end after the last element: TensorFlow's take() ends with that
// element. The iteration therefore keeps the last element back until it knows that no other element follows.
// This way the dispatcher and caches learn of the end, and more elements than asserted are an error and no end.

// maxEndWait limits how long the last element waits for the end. The end may arrive late, for example from an
// unreachable worker. An element beyond an asserted cardinality that is too small may have no memory budget while
// the last one is queued.
const maxEndWait = 5 * time.Second

// beforeLast returns how many of up to max elements may be dequeued without a look at the element that
// follows. It returns 0 for the last element. it.mu is held.
func (it *Iteration) beforeLast(max int) int {
	left := it.length - int64(it.elements)
	switch {
	case left <= 0:
		return max
	case left <= int64(max):
		return int(left) - 1
	}
	return max
}

// lastWaits reports whether the last element has to wait. it.mu is held.
func (it *Iteration) lastWaits(last epoch.Lookahead) bool {
	switch now := time.Now(); {
	case last != epoch.MayBeLast:
		it.waitingSince = time.Time{}
		return false
	case it.waitingSince.IsZero():
		it.waitingSince = now
		return true
	default:
		return now.Sub(it.waitingSince) < maxEndWait
	}
}
