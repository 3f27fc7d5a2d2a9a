package client

import (
	"fmt"
	"time"

	"github.com/pecan-ml/pecan/native/client/epoch"
	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/proto/reason"
)

// asserts tells whether assert_cardinality at the root is checked here: only one who reads everything can.
func (it *Iteration) asserts() (int64, bool) {
	promised := it.job.consumer.Plan.GetAssertedCardinality()
	return promised, it.alone() && promised >= -1 && !epoch.MayDiffer(it.job.consumer.Plan, it.job.consumer.Options)
}

// tooMany is an error when so many more than were taken are more than was promised.
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

// Cardinality is how many elements one iteration gives, where that is the same for every iteration: not with a job
// that others may share, nor where each worker gives everything.
func Cardinality(plan *pecanv1.Plan, options *pecanv1.JobOptions, shared bool) int64 {
	pass, repeat := plan.GetCardinality(), plan.GetRepeat()
	switch {
	case pass == 0 || repeat == 0:
		return 0
	case pass == infiniteCardinality || repeat < 0 && pass != unknownCardinality:
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

// ExactCount tells whether one iteration gives as many elements as a local one, also when workers are lost: with a hint, what
// stands above it counts in each stream for itself.
func ExactCount(plan *pecanv1.Plan, options *pecanv1.JobOptions, shared bool) bool {
	return !shared && !epoch.MayDiffer(plan, options) && options.GetMode() != pecanv1.Mode_MODE_OFF && options.GetSharding() != pecanv1.Sharding_SHARDING_HINT
}

// Who counts does not ask behind the last element: TensorFlow's take ends with it. So the last one waits until it is known that none
// comes behind it: the dispatcher and caches hear of the end then, and more than were promised are no end but an error.

// maxHold is how long the last element waits at most: the end may be long in coming, from a worker that cannot be reached as well, and
// what comes behind a promise that was too small may have no room beside it.
const maxHold = 5 * time.Second

// beforeLast is how many of up to max elements may be taken without a look at what follows, 0 for the last one. it.mu is held.
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

// holdsLast tells whether the last element has to wait. it.mu is held.
func (it *Iteration) holdsLast(last epoch.Lookahead) bool {
	switch now := time.Now(); {
	case last != epoch.MayBeLast:
		it.holdingSince = time.Time{}
		return false
	case it.holdingSince.IsZero():
		it.holdingSince = now
		return true
	default:
		return now.Sub(it.holdingSince) < maxHold
	}
}
