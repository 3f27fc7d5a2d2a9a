package schedule_test

import (
	"fmt"
	"math/rand/v2"
	"testing"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/dispatcher/core/durable"
	"github.com/pecan-ml/pecan/service/dispatcher/core/schedule"
)

// preempt calls Preempt, takes the streams from their workers, and leases the slots. It returns how many streams moved.
func (m *market) preempt(starved, movable func(*durable.Epoch) bool) int {
	m.t.Helper()
	taken := m.schedule.Preempt(starved, movable)
	for _, ref := range taken {
		m.lose(ref.Epoch, ref.Stream)
	}
	m.schedule.Run(false)
	return len(taken)
}

// begin adds a job whose streams do not end, and leases what it gets at once.
func (m *market) begin(id string, weight float64) *durable.Job {
	m.t.Helper()
	job := m.add(id, "", weight, endless)
	m.run(1, nil)
	return job
}

func endless() int { return 1 << 30 }

func all(*durable.Epoch) bool { return true }

func TestALateJobGetsItsShareAlthoughNoStreamEnds(t *testing.T) {
	m := newMarket(t, 1, 4, 4, nil)
	early, late := m.begin("early", 1), m.begin("late", 3)
	if n := m.schedule.OfJob(late).Running; n != 1 {
		t.Fatalf("the late job has %d streams at once", n)
	}
	if n := m.preempt(all, all); n != 0 {
		t.Fatalf("%d streams moved before the job had waited", n)
	}
	for range 2 {
		m.preempt(all, all)
	}
	// The first stream of the late job was one more than the slots.
	if a, b := m.schedule.OfJob(early).Running, m.schedule.OfJob(late).Running; a != 5 || b != 12 {
		t.Errorf("%d and %d slots for the weights 1 and 3", a, b)
	}
}

func TestNoStreamMovesThatCannotOrForATrainerThatDoesNotWait(t *testing.T) {
	m := newMarket(t, 1, 4, 4, nil)
	early, late := m.begin("early", 1), m.begin("late", 1)
	for range 3 {
		if n := m.preempt(all, func(epoch *durable.Epoch) bool { return epoch.Job != early }); n != 0 {
			t.Fatalf("%d streams moved that cannot", n)
		}
		if n := m.preempt(func(epoch *durable.Epoch) bool { return epoch.Job != late }, all); n != 0 {
			t.Fatalf("%d streams moved for a trainer that does not wait", n)
		}
	}
}

// A worker holds so many produced streams of a job that it gives it no further slot. So no other job gives one.
func TestNoStreamMovesForAJobThatCannotUseTheSlot(t *testing.T) {
	m := newMarket(t, 1, 1, 8, nil)
	m.begin("early", 1)
	late := m.add("late", "", 1, endless)
	late.Plan.Group, late.Options.Mode = 40, pecanv1.Mode_MODE_DETERMINISTIC
	m.run(1, nil)
	m.paused["late"] = true
	for stream := range uint32(39) {
		m.end(late.Epochs[0], stream)
	}
	m.schedule.Run(false)
	for call := range 4 {
		if n := m.preempt(all, all); n != 0 {
			t.Errorf("%d streams move in call %d", n, call)
		}
	}
}

func TestPreemptedSlotsGoToTheJobTheyWereTakenFor(t *testing.T) {
	m := newMarket(t, 1, 4, 4, nil)
	early, paused, late := m.begin("early", 1), m.begin("paused", 1), m.begin("late", 1)
	for range 4 {
		m.preempt(func(epoch *durable.Epoch) bool { return epoch.Job == late }, all)
	}
	a, b, c := m.schedule.OfJob(early).Running, m.schedule.OfJob(paused).Running, m.schedule.OfJob(late).Running
	if b != 1 || c < 7 || a < c {
		t.Errorf("the early, the paused and the late job have %d, %d and %d slots", a, b, c)
	}
}

// Whatever the jobs, their weights and quotas are: no slot moves back, and all slots stay in use. At the end no job has as
// much as another one would have with a further slot.
func TestPreemptionEndsInFairShares(t *testing.T) {
	moved := 0
	for seed := range uint64(300) {
		rng := rand.New(rand.NewPCG(seed, 4))
		tenants := map[string]schedule.Tenant{}
		for i := range 3 {
			tenants[fmt.Sprint("t", i)] = schedule.Tenant{Weight: float64(1 + rng.IntN(4)), MaxSlots: rng.IntN(2) * (4 + rng.IntN(20)), MaxSlotsPerJob: rng.IntN(2) * (2 + rng.IntN(10))}
		}
		workers, each := 1+rng.IntN(6), 1+rng.IntN(8)
		m := newMarket(t, seed, workers, each, tenants)
		var jobs []*durable.Job
		for i := range 2 + rng.IntN(5) {
			jobs = append(jobs, m.add(fmt.Sprint("j", i), fmt.Sprint("t", rng.IntN(3)), float64(1+rng.IntN(4)), endless))
			m.run(1, nil)
		}
		// The first streams of jobs come beyond all quotas and slots.
		least, before, calls := 0, 0, 0
		for name, tenant := range tenants {
			n := m.schedule.OfTenant(name).Running
			if before += n; tenant.MaxSlots > 0 {
				n = min(n, tenant.MaxSlots)
			}
			least += n
		}
		for quiet := 0; quiet < 2; calls++ {
			n := m.preempt(all, all)
			moved += n
			if quiet++; n > 0 {
				quiet = 0
			}
			if calls > 20 {
				t.Fatalf("seed %d: streams still move after %d calls", seed, calls)
			}
		}
		after, slots := 0, workers*each
		for name := range tenants {
			after += m.schedule.OfTenant(name).Running
		}
		if after > before || after < min(least, slots) {
			t.Errorf("seed %d: %d streams run instead of %d, and %d are within the quotas, on %d slots", seed, after, before, least, slots)
		}
		for _, low := range jobs {
			if m.schedule.OfJob(low).Running == 0 {
				t.Errorf("seed %d: a job has no stream", seed)
			}
			for _, high := range jobs {
				if m.schedule.OfJob(high).Running > 1 && m.mayGive(high, low) {
					t.Errorf("seed %d: %s has %d slots and %s has %d", seed, high.JobId, m.schedule.OfJob(high).Running, low.JobId, m.schedule.OfJob(low).Running)
				}
			}
		}
	}
	if moved < 300 {
		t.Errorf("only %d streams moved", moved)
	}
}

// mayGive reports whether a job that gives a slot to another one would still have as many for its weight, and no quota forbids
// that.
func (m *market) mayGive(high, low *durable.Job) bool {
	gives, gets := high.Options.EffectiveTenant(), low.Options.EffectiveTenant()
	bounds := m.schedule.BoundsOf(gets)
	switch {
	case bounds.MaxSlotsPerJob > 0 && m.schedule.OfJob(low).Slots >= bounds.MaxSlotsPerJob:
		return false
	case gives == gets:
		return high != low && perWeight(m.schedule.OfJob(high), -1, high.Options.EffectiveWeight()) >= perWeight(m.schedule.OfJob(low), 1, low.Options.EffectiveWeight())
	case bounds.MaxSlots > 0 && m.schedule.OfTenant(gets).Slots >= bounds.MaxSlots:
		return false
	}
	return perWeight(m.schedule.OfTenant(gives), -1, m.schedule.BoundsOf(gives).Weight) >= perWeight(m.schedule.OfTenant(gets), 1, bounds.Weight)
}

func perWeight(usage schedule.Usage, more int, weight float64) float64 {
	return float64(usage.Running+more) / weight
}
