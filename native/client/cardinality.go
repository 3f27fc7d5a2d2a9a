package client

import (
	"time"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
)

// Cardinality numbers of tf.data.
const (
	infinite = -1
	unknown  = -2
)

// Cardinality is how many elements one iteration gives, where that is the same for every iteration: not with a job
// that others may share, nor where each worker gives everything.
func Cardinality(plan *pecanv1.Plan, options *pecanv1.JobOptions, shared bool) int64 {
	pass, repeat := plan.GetCardinality(), plan.GetRepeat()
	switch {
	case pass == 0 || repeat == 0:
		return 0
	case pass == infinite || repeat < 0 && pass != unknown:
		return infinite
	case !Whole(plan, options, shared):
		return unknown
	case pass < 0 || repeat < 0:
		return unknown
	case pass > (1<<62)/repeat:
		return unknown
	}
	return pass * repeat
}

// Whole tells whether one iteration gives as many elements as a local one, also when workers are lost: with a hint, what
// stands above it counts in each stream for itself.
func Whole(plan *pecanv1.Plan, options *pecanv1.JobOptions, shared bool) bool {
	return !shared && !MayDiffer(plan, options) && options.GetMode() != pecanv1.Mode_MODE_OFF && options.GetSharding() != pecanv1.Sharding_SHARDING_HINT
}

// Who counts does not ask behind the last element: TensorFlow's take ends with it. So the last one waits until it is known that none
// comes behind it: the dispatcher and caches hear of the end then, and more than were promised are no end but an error.

// longestHold is how long the last element waits at most: the end may be long in coming, from a worker that cannot be reached as well, and
// what comes behind a promise that was too small may have no room beside it.
const longestHold = 5 * time.Second

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

// holds tells whether the last element has to wait. it.mu is held.
func (it *Iteration) holds(last standing) bool {
	switch now := time.Now(); {
	case last != standsAlone:
		it.heldSince = time.Time{}
		return false
	case it.heldSince.IsZero():
		it.heldSince = now
		return true
	default:
		return now.Sub(it.heldSince) < longestHold
	}
}

// standing is what is known of the element that an epoch has next.
type standing int

const (
	// standsAnyway: it fails, or there is none, or nothing will come any more.
	standsAnyway standing = iota
	// standsAlone: whether another one follows is not known.
	standsAlone
	// standsBefore: another one follows.
	standsBefore
)

// next tells of the element that is next.
func (e *epoch) next() standing {
	e.mu.Lock()
	defer e.mu.Unlock()
	queued := 0
	for _, st := range e.list {
		for i := range st.queue {
			if st.queue[i].err != nil {
				return standsAnyway
			}
			queued += st.queue[i].left()
		}
	}
	switch {
	case queued > 1:
		return standsBefore
	case queued == 0 || e.received() || e.err != nil || e.closed:
		return standsAnyway
	}
	return standsAlone
}
