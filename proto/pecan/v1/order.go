package pecanv1

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
)

// maxPlaces bounds the steps of an order that a position spells out, so that a token stays within 4 KiB.
const maxPlaces = 1024

// OrderHash names an order of steps under a plan; "" for none, which is the registered one.
func OrderHash(plan *Plan, order []string) string {
	if len(order) == 0 {
		return ""
	}
	sum := sha256.Sum256(fmt.Appendf(nil, "pecan order 1 %s %q", plan.GetHash(), order))
	return hex.EncodeToString(sum[:])
}

// NewEpochOrder writes an order down for positions.
func NewEpochOrder(plan *Plan, order []string) *EpochOrder {
	o := &EpochOrder{Hash: OrderHash(plan, order)}
	if len(order) > maxPlaces {
		return o
	}
	sorted := slices.Sorted(slices.Values(order))
	for _, name := range order {
		at, _ := slices.BinarySearch(sorted, name)
		o.Steps = append(o.Steps, uint32(at))
	}
	return o
}

// Names are the steps in the order, of those that a dataset has. Who wrote the order down is not known.
func (o *EpochOrder) Names(plan *Plan, steps []string) ([]string, error) {
	if len(steps) != len(o.GetSteps()) || len(steps) > maxPlaces {
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
		return nil, fmt.Errorf("its hash %.12s is that of other steps", o.GetHash())
	}
	return order, nil
}

// ToleranceMeant is how far elements may differ in another order of steps. Where nobody said so, deterministic elements do not differ: it
// depends on how long measuring took from which epoch on there is another order.
func (o *JobOptions) ToleranceMeant() OrderTolerance {
	switch {
	case o.GetOrder() == Order_ORDER_PAPER:
		return OrderTolerance_ORDER_TOLERANCE_ANY
	case o.GetOrderTolerance() != OrderTolerance_ORDER_TOLERANCE_UNSPECIFIED:
		return o.GetOrderTolerance()
	case o.GetMode() == Mode_MODE_DETERMINISTIC:
		return OrderTolerance_ORDER_TOLERANCE_EXACT
	}
	return OrderTolerance_ORDER_TOLERANCE_APPROXIMATE
}
