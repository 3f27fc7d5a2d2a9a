package epoch

import (
	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
)

// In a plan with a carry, the last batches of an epoch go on in the next one. The client tells the dispatcher which epoch
// goes on, and keeps the names of the rows for positions. It never holds the rows.

// carryState has the rows that an epoch shares with its neighbours. Epoch.mu guards next, joins, carry and carried.
type carryState struct {
	// afterNumber is the number of the epoch whose last rows this epoch joins; nil if there is none. after is that epoch
	// until this epoch is read. Later after is nil, because an endless iteration must not keep all its epochs.
	afterNumber *uint64
	after       *Epoch
	// next is closed when the epoch in which the batches go on is open, or will never be; nil without one.
	next chan struct{}
	// joins are rows of earlier epochs. carried is set once carry has the rows for the next epoch.
	joins, carry []*pecanv1.KeptRows
	carried      bool
}

func newCarryState(after *Epoch, start *pecanv1.Position) carryState {
	state := carryState{after: after, joins: start.GetJoins(), carry: start.GetCarry(), carried: start.GetCarried()}
	if after != nil {
		number := after.Number()
		state.afterNumber = &number
	}
	return state
}

// Carries reports whether the batches of this job's epochs go on in the next ones, and this client says in which.
func (c *Consumer) Carries() bool { return c.Plan.GetCarry() && !c.Shared() }

// GoesOnAfter reports whether the epoch was opened as the one in which the batches of another one go on.
func (e *Epoch) GoesOnAfter(before *Epoch) bool { return e.after == before }

// GoOn notes that the batches of the epoch before go on in this one, which takes over the names of its rows. The epoch
// before stays open at the dispatcher until this one is open.
func (e *Epoch) GoOn() {
	if e.after == nil {
		return
	}
	e.after.mu.Lock()
	rows := e.after.carry
	e.after.next = e.Answered
	e.after.mu.Unlock()
	e.after = nil
	e.mu.Lock()
	e.joins = rows
	e.mu.Unlock()
}

// LeftRows returns the rows that the epoch leaves for the next one.
func (e *Epoch) LeftRows() []*pecanv1.KeptRows {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.carry
}

// applyCarry takes over from an update which rows the epoch leaves. e.mu is held.
func (e *Epoch) applyCarry(update *pecanv1.EpochUpdate) {
	if update.GetCarried() {
		e.carried, e.carry = true, update.GetCarry()
	}
}

// putRows puts the rows of other epochs into a position. e.mu is held.
func (e *Epoch) putRows(position *pecanv1.Position) {
	position.Joins, position.Carried, position.Carry = e.joins, e.carried, e.carry
}
