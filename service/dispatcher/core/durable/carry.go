package durable

import (
	"fmt"
	"slices"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
)

// Carry returns which of the joined rows are left for the next epoch. A closing stream joins the rows in their order and
// sends full batches of batchRows. The end of the list is left, which has fewer than batchRows rows. The streams keep these
// rows until a later epoch has sent them. If a worker dies, only its streams in the list run again, for their remainders.
func Carry(joined []*pecanv1.KeptRows, batchRows uint64) []*pecanv1.KeptRows {
	if batchRows == 0 {
		return nil
	}
	left := uint64(0)
	for _, kept := range joined {
		left = (left + kept.Rows%batchRows) % batchRows
	}
	var carry []*pecanv1.KeptRows
	for at := len(joined); left > 0; {
		at--
		kept := joined[at]
		if kept.Rows == 0 {
			continue
		}
		rows := min(kept.Rows, left)
		carry = append(carry, &pecanv1.KeptRows{Epoch: kept.Epoch, Stream: kept.Stream, Skip: kept.Skip + kept.Rows - rows, Rows: rows})
		left -= rows
	}
	slices.Reverse(carry)
	return carry
}

// Joined returns all rows that the last closing stream of an epoch joins, in their order.
func (e *Epoch) Joined() []*pecanv1.KeptRows {
	last, _ := e.Job.Plan.LastClosing()
	joined := slices.Clone(e.Joins)
	first, below := e.Sources(last)
	for source := first; source < below; source++ {
		if rows := e.Stream(source).RemainderRows; rows > 0 {
			joined = append(joined, &pecanv1.KeptRows{Epoch: e.Epoch, Stream: source, Rows: rows})
		}
	}
	return joined
}

// Kept reports whether another open epoch of the job needs rows that an epoch keeps back, or will know which ones it
// needs. The epoch then stays open without readers.
func (e *Epoch) Kept() bool {
	return e.RowsAwaited() || slices.ContainsFunc(e.Job.Epochs, func(other *Epoch) bool {
		return other != e && other.reads(func(kept *pecanv1.KeptRows) bool { return kept.Epoch == e.Epoch })
	})
}

// RowsAwaited reports whether another open epoch waits to know which rows an epoch leaves.
func (e *Epoch) RowsAwaited() bool {
	return slices.ContainsFunc(e.Job.Epochs, func(other *Epoch) bool { return other.After != nil && *other.After == e.Epoch })
}

// carryNeeds reports whether an open epoch may still read the remainder of a stream across the end of its epoch.
func (e *Epoch) carryNeeds(stream uint32) bool {
	if !e.Job.Plan.GetCarry() {
		return false
	}
	return slices.ContainsFunc(e.Job.Epochs, func(other *Epoch) bool {
		return other.reads(func(kept *pecanv1.KeptRows) bool { return kept.Epoch == e.Epoch && kept.Stream == stream })
	})
}

// reads reports whether the epoch, or the one after it, still reads such rows.
func (e *Epoch) reads(such func(*pecanv1.KeptRows) bool) bool {
	return e.StillJoins() && slices.ContainsFunc(e.Joins, such) || slices.ContainsFunc(e.Carry, such)
}

// StillJoins reports whether the last closing stream of the epoch is not delivered.
func (e *Epoch) StillJoins() bool {
	last, exists := e.Job.Plan.LastClosing()
	return exists && last < e.total && !e.delivered.has(last)
}

// applyEpochCarried records the rows that an epoch leaves. The epochs that follow it join them.
func (s *State) applyEpochCarried(r *pecanv1.EpochCarried) error {
	job, epoch, err := s.Epoch(r.JobId, r.Epoch)
	if err != nil {
		return err
	}
	if epoch.Carried || !job.Plan.GetCarry() {
		return fmt.Errorf("epoch %d leaves rows for the second time, or its plan has no carry", r.Epoch)
	}
	if err := job.Plan.CheckKeptRows(r.Epoch+1, r.Carry); err != nil {
		return err
	}
	epoch.Carried, epoch.Carry = true, r.Carry
	for _, next := range job.Epochs {
		if next.After != nil && *next.After == r.Epoch {
			next.After, next.Joins = nil, r.Carry
		}
	}
	s.settleCarry(job)
	return nil
}

// settleCarry settles the streams that no epoch reads any more. Call it when a list of carried rows changes or was read:
// only streams in two such lists can change.
func (s *State) settleCarry(job *Job) {
	if job.Plan.GetCarry() {
		s.settleAll(job)
	}
}

// settleAll settles all streams of a job that nobody needs.
func (s *State) settleAll(job *Job) {
	for _, epoch := range job.Epochs {
		for _, stream := range epoch.Active() {
			if epoch.active[stream.Stream] != nil {
				s.settle(epoch, stream)
			}
		}
	}
}
