package core_test

import (
	"fmt"
	"slices"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
)

// Some plans of the simulation have a carry. Their last closing stream sends full batches only, and the rows that are left
// come in the next epoch.

// simRow is one row of a remainder.
type simRow struct {
	epoch  uint64
	stream uint32
	index  uint64
}

// simJoin is what the last closing stream of an epoch joined: its full batches, and the rows that are left.
type simJoin struct {
	joined  []simRow
	batches int
	left    []simRow
}

// carries draws a plan with a carry for a third of the plans that may have one.
func (s *sim) carries() bool {
	exact := s.mode == pecanv1.Mode_MODE_EXACTLY_ONCE || s.mode == pecanv1.Mode_MODE_DETERMINISTIC
	return s.closing && exact && s.rng.IntN(2) == 0
}

// setCarry gives the plan a carry. Streams keep at most 2 rows back, so a batch has more.
func (s *sim) setCarry() {
	s.plan.Carry, s.plan.BatchRows, s.plan.Cardinality = true, []int64{3, 5, 8, 40}[s.rng.IntN(4)], -1
}

func (s *sim) isLast(stream uint32) bool {
	last, _ := s.plan.LastClosing()
	return s.plan.Carry && stream == last
}

// countIn returns the number of elements of a stream in an epoch of a trainer's line.
func (s *sim) countIn(pass string, stream uint32) uint64 {
	if !s.isLast(stream) {
		return countOf(stream)
	}
	if join := s.joins[pass]; join != nil {
		return uint64(join.batches)
	}
	return 0
}

// join lets a worker join what the last closing stream of an epoch joins. All runs of it must join the same rows.
func (s *sim) join(h *simHeld) {
	if !s.isLast(h.id.Stream) {
		return
	}
	now := &simJoin{}
	for _, source := range h.start.Remainders {
		for row := range source.Rows {
			now.joined = append(now.joined, simRow{h.id.Epoch - source.EpochsBefore, source.Stream, source.SkipRows + row})
		}
	}
	now.batches = len(now.joined) / int(s.plan.BatchRows)
	now.left = now.joined[now.batches*int(s.plan.BatchRows):]
	h.count = uint64(now.batches)
	pass := fmt.Sprintf("%s/%d", s.lines[h.id.JobId], h.id.Epoch)
	if before := s.joins[pass]; before != nil && !slices.Equal(before.joined, now.joined) {
		s.t.Errorf("the last closing stream of pass %s joined %v and now %v", pass, before.joined, now.joined)
	}
	s.joins[pass] = now
}

// closeLast closes the pass that a trainer has read to its end. Its batches go on in the next one, so that one is opened
// before.
func (s *sim) closeLast(c *simClient) {
	if c.last == nil {
		return
	}
	request := &pecanv1.CloseEpochRequest{ClientId: c.id, JobId: c.job, Epoch: c.last.epoch}
	c.last = nil
	if _, err := s.feed(request); err != nil {
		s.t.Fatalf("close: %v", err)
	}
}

// goesOn sets the pass whose batches go on in the next pass, and what that one joins.
func (s *sim) goesOn(c *simClient, request *pecanv1.OpenEpochRequest) {
	if before := c.last; s.plan.Carry && request.Position == nil {
		if c.current != nil {
			before = c.current
		}
		if before != nil {
			request.After = &before.epoch
		}
	}
}

// rows completes a position by the rows that batches go on with.
func (p *simPass) rows(position *pecanv1.Position) {
	position.Joins, position.Carried, position.Carry = p.joins, p.carried(), p.carry
	if p.update != nil && p.update.Carried {
		position.Carry = p.update.Carry
	}
}

func (p *simPass) carried() bool { return p.wasCarried || p.update.GetCarried() }

// adopts takes over the rows that the pass before left.
func (p *simPass) adopts(before *simPass) {
	if before != nil {
		position := &pecanv1.Position{}
		before.rows(position)
		p.joins = position.Carry
	}
}

// checkCarry compares the rows of all batches of each line with the rows that its streams kept back. Each of these rows
// comes once, in the order in which they were joined.
func (s *sim) checkCarry() {
	if !s.plan.Carry {
		return
	}
	lines := map[string]bool{}
	for _, line := range s.lines {
		lines[line] = true
	}
	for line := range lines {
		var carry, sent, want []simRow
		for epoch := uint64(0); s.finished[fmt.Sprintf("%s/%d", line, epoch)]; epoch++ {
			join := s.joins[fmt.Sprintf("%s/%d", line, epoch)]
			if join == nil {
				s.t.Errorf("pass %s/%d has no batches of its last closing stream", line, epoch)
				break
			}
			if !slices.Equal(join.joined[:min(len(carry), len(join.joined))], carry) && !s.deaths {
				s.t.Errorf("pass %s/%d joined %v after %v were left", line, epoch, join.joined, carry)
			}
			sent, carry = append(sent, join.joined[:len(join.joined)-len(join.left)]...), join.left
			last, _ := s.plan.LastClosing()
			first, below := s.plan.Sources(last)
			for source := first; source < below; source++ {
				for row := range uint64(source % 3) {
					want = append(want, simRow{epoch, source, row})
				}
			}
			s.carried++
		}
		if got := append(sent, carry...); !slices.Equal(got, want) && !s.deaths {
			s.t.Errorf("line %s: rows %v came, want %v", line, got, want)
		}
	}
}
