package client

import (
	"fmt"

	"github.com/pecan-ml/pecan/proto/reason"
)

// asserts tells whether assert_cardinality at the root is checked here: only one who reads everything can.
func (it *Iteration) asserts() (int64, bool) {
	promised := it.job.consumer.Plan.GetAssertedCardinality()
	return promised, it.alone() && promised >= -1 && !MayDiffer(it.job.consumer.Plan, it.job.consumer.Options)
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
