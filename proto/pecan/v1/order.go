package pecanv1

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
)

// MaxOrderSteps bounds the steps that an EpochOrder lists, so that a resume token stays within 4 KiB.
const MaxOrderSteps = 1024

// OrderHash returns the hash of an order of steps under a plan. An empty order is the registered one, with hash "".
func OrderHash(plan *Plan, order []string) string {
	if len(order) == 0 {
		return ""
	}
	sum := sha256.Sum256(fmt.Appendf(nil, "pecan order 1 %s %q", plan.GetHash(), order))
	return hex.EncodeToString(sum[:])
}

// NewEpochOrder returns the form in which positions record an order.
func NewEpochOrder(plan *Plan, order []string) *EpochOrder {
	o := &EpochOrder{Hash: OrderHash(plan, order)}
	if len(order) > MaxOrderSteps {
		return o
	}
	sorted := slices.Sorted(slices.Values(order))
	for _, name := range order {
		at, _ := slices.BinarySearch(sorted, name)
		o.Steps = append(o.Steps, uint32(at))
	}
	return o
}

// Names returns the steps in the recorded order. steps are all steps of the dataset. The order may come from a token, so
// it is checked: an order of other steps is an error.
func (o *EpochOrder) Names(plan *Plan, steps []string) ([]string, error) {
	if len(steps) != len(o.GetSteps()) || len(steps) > MaxOrderSteps {
		return nil, fmt.Errorf("it names %d steps, and the dataset has %d", len(o.GetSteps()), len(steps))
	}
	sorted := slices.Sorted(slices.Values(steps))
	var order []string
	for _, at := range o.GetSteps() {
		if uint64(at) >= uint64(len(sorted)) {
			return nil, fmt.Errorf("it names step %d, and the dataset has %d", at, len(sorted))
		}
		order = append(order, sorted[at])
	}
	if OrderHash(plan, order) != o.GetHash() {
		return nil, fmt.Errorf("its hash %.12s belongs to other steps", o.GetHash())
	}
	return order, nil
}

// Published reports whether the published policy made the order, with our guards or without them.
func (x Order) Published() bool {
	return x == Order_ORDER_PAPER || x == Order_ORDER_PAPER_UNGUARDED
}

// EffectiveTolerance returns the order tolerance of a job, with the default filled in. The default of deterministic jobs
// is exact, because the epoch in which a new order starts depends on timing.
func (o *JobOptions) EffectiveTolerance() OrderTolerance {
	switch {
	case o.GetOrder().Published():
		return OrderTolerance_ORDER_TOLERANCE_ANY
	case o.GetOrderTolerance() != OrderTolerance_ORDER_TOLERANCE_UNSPECIFIED:
		return o.GetOrderTolerance()
	case o.GetMode() == Mode_MODE_DETERMINISTIC:
		return OrderTolerance_ORDER_TOLERANCE_EXACT
	}
	return OrderTolerance_ORDER_TOLERANCE_APPROXIMATE
}

// Advice says what a wider tolerance would save and change; empty without one.
func (w *WiderTolerance) Advice() string {
	if w == nil {
		return ""
	}
	trial, differences := w.GetTrial(), ""
	for _, c := range trial.GetComponents() {
		if c.GetMaxDifference() > 0 {
			differences += fmt.Sprintf(", in component %d by up to %.4g of a range of %.4g", c.GetComponent(), c.GetMaxDifference(), c.GetRange())
		}
	}
	changes := "values were equal"
	if differences != "" {
		changes = "values differed" + strings.Replace(differences, ",", "", 1)
	}
	return fmt.Sprintf("order_tolerance=%q allows a cheaper order of the steps: in a trial of %d elements, each took %.4g ms of CPU instead of %.4g ms, and %s",
		Word(w.GetTolerance(), "ORDER_TOLERANCE_"), trial.GetElements(), 1000*trial.GetOrderedS(), 1000*trial.GetOriginalS(), changes)
}

// MayReturn reports whether an order is piloted again after an epoch without a failure. An order may return once after a failed
// stream, or after costs above those of earlier epochs, because these may have another cause.
func (o *StoredOrder) MayReturn() bool {
	return o.isRolledBack() && !o.GetElementsFailed() && o.GetSuspicions() == 1
}

// MayBeExcused reports whether an order is piloted again if elements fail in the registered order too.
func (o *StoredOrder) MayBeExcused() bool { return o.isRolledBack() && o.GetElementsFailed() }

// isFinal reports whether an order is rolled back for good.
func (o *StoredOrder) isFinal() bool { return o.isRolledBack() && !o.MayReturn() && !o.MayBeExcused() }

func (o *StoredOrder) isRolledBack() bool { return o.GetStage() == OrderStage_ORDER_STAGE_ROLLED_BACK }

// knownOfElements returns how much is known of failed elements: nothing, that they failed in the order, or that they failed in the
// registered order too.
func (o *StoredOrder) knownOfElements() int {
	switch {
	case o.GetElementsExcused():
		return 2
	case o.GetElementsFailed():
		return 1
	}
	return 0
}

// State names the stage of a decision for people.
func (o *StoredOrder) State() string {
	switch {
	case o.GetStage() == OrderStage_ORDER_STAGE_PILOTED:
		return "piloted"
	case o.isRolledBack():
		return "rolled back"
	case len(o.GetOrder()) > 0:
		return "adopted"
	case o.GetTrial() != nil:
		return "refused"
	}
	return "kept"
}
