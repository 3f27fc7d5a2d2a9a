package provision

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

type phase int

const (
	pending phase = iota
	ready
	ending
)

// machine is one worker as its provider knows it: a pod or a process.
type machine struct {
	name string
	// hosts are the names under which the worker may advertise itself: a host, or HOST:PORT.
	hosts   []string
	phase   phase
	created time.Time
	// marked is the time at which the machine was marked as one that leaves; zero if it is not marked.
	marked time.Time
	// stuck is why the provider cannot start it.
	stuck string
	// ordinal is its place among machines that are removed in order.
	ordinal int
}

func (m machine) is(a Address) bool {
	return slices.ContainsFunc(m.hosts, func(host string) bool { return a.Same(Address(host)) })
}

func (m machine) address() Address {
	if len(m.hosts) == 0 {
		return Address(m.name)
	}
	return Address(m.hosts[0])
}

// observed has the workers that exist at a provider.
type observed struct {
	// replicas is the number of machines that the provider is asked for.
	replicas int
	machines []machine
	// refused is why the provider does not create machines.
	refused string
	// shortSince is the time since which machines are requested that do not exist; zero if there are none.
	shortSince time.Time
	// ordered is set if only the machine with the highest ordinal can be removed.
	ordered bool
}

// rules are the times of a provider.
type rules struct {
	// settle is the time between the mark of a machine and its removal. In that time, controllers that choose by the mark
	// see it.
	settle, patience time.Duration
}

// actions are the changes that a provider makes, in the order of the fields.
type actions struct {
	mark, unmark []string
	// replicas is the number of machines to ask for.
	replicas int
	// drop are the machines that go. A provider that chooses by the mark finds them by itself.
	drop []string
	// remove are the machines of drop that a provider did not choose, so that they are removed by name.
	remove []string
	// why is the reason for which fewer machines are removed than the caller wants.
	why string
}

// plan compares what exists with what the caller wants.
//
// A ready machine is dropped only if the caller named it. Machines that are not ready have no streams, so those beyond desired are
// dropped without a name. A named machine is marked first and dropped when the mark has settled; until then it is asked for
// in addition to desired.
func plan(o observed, desired int, leaving []Address, now time.Time, r rules) actions {
	var act actions
	settled, unsettled, keep, readyKeep := 0, 0, 0, 0
	active := slices.DeleteFunc(slices.Clone(o.machines), func(m machine) bool { return m.phase == ending })
	slices.SortFunc(active, inOrderOfRemoval)
	gone := map[string]bool{}
	for _, m := range active {
		named := slices.ContainsFunc(leaving, m.is)
		switch {
		case named && r.settle > 0 && m.marked.IsZero():
			act.mark = append(act.mark, m.name)
			unsettled++
		case named && now.Sub(m.marked) < r.settle:
			unsettled++
		case named:
			settled++
			gone[m.name] = true
			act.drop = append(act.drop, m.name)
		default:
			if !m.marked.IsZero() {
				act.unmark = append(act.unmark, m.name)
			}
			keep++
			if m.phase == ready {
				readyKeep++
			}
		}
	}
	act.replicas = max(desired, readyKeep) + unsettled
	if readyKeep > desired {
		act.why = fmt.Sprintf("%d ready workers more than desired: none of them was asked to leave", readyKeep-desired)
	}
	if o.ordered {
		return ordered(o, act, active, gone, max(desired, 0))
	}
	excess := keep - max(desired, readyKeep)
	for _, m := range active {
		if excess > 0 && m.phase == pending && !gone[m.name] && !slices.ContainsFunc(leaving, m.is) {
			act.drop = append(act.drop, m.name)
			excess--
		}
	}
	// The provider removed as many machines as asked, but removed a different one. The machine that should be gone is still there.
	if o.replicas <= act.replicas && len(active) <= o.replicas && settled > 0 {
		act.remove = slices.Clone(act.drop[:settled])
	}
	return act
}

// ordered bounds a plan for machines of which only the last one can be removed.
func ordered(o observed, act actions, active []machine, gone map[string]bool, desired int) actions {
	slices.SortFunc(active, func(a, b machine) int { return b.ordinal - a.ordinal })
	least := o.replicas
	for _, m := range active {
		if m.ordinal >= least {
			continue
		}
		if m.phase == ready && !gone[m.name] {
			// Workers above it do not exist and can be given up.
			least = min(least, m.ordinal+1)
			if least > desired {
				act.why = fmt.Sprintf("workers are removed in order: %s must leave first, and it was not asked to leave", m.name)
			}
			break
		}
		least = m.ordinal
	}
	if len(active) == 0 {
		least = 0
	}
	act.replicas = max(desired, least)
	act.drop = nil
	for _, m := range active {
		if m.ordinal >= act.replicas {
			act.drop = append(act.drop, m.name)
		}
	}
	return act
}

// inOrderOfRemoval sorts marked machines first, then those that are stuck, and then the newest.
func inOrderOfRemoval(a, b machine) int {
	return cmp.Or(
		isZero(a.marked.IsZero())-isZero(b.marked.IsZero()),
		isZero(a.stuck == "")-isZero(b.stuck == ""),
		b.created.Compare(a.created),
		cmp.Compare(b.name, a.name),
	)
}

func isZero(zero bool) int {
	if zero {
		return 1
	}
	return 0
}

// describe counts what exists for the caller, after the actions of a plan.
func describe(o observed, desired int, leaving []Address, now time.Time, r rules) State {
	s := State{Desired: desired, Ordered: o.ordered}
	machines := slices.Clone(o.machines)
	slices.SortStableFunc(machines, func(a, b machine) int { return a.ordinal - b.ordinal })
	for _, m := range machines {
		named := slices.ContainsFunc(leaving, m.is) || !m.marked.IsZero()
		switch {
		case m.phase == ending || named:
			s.Leaving = append(s.Leaving, m.address())
			continue
		case m.phase == ready:
			s.Ready++
			s.Removable = append(s.Removable, m.address())
			continue
		}
		s.Pending++
		why := m.stuck
		if waited := now.Sub(m.created); why == "" && waited > r.patience {
			why = fmt.Sprintf("not ready after %s", waited.Round(time.Second))
		}
		if why != "" {
			s.Stuck++
			s.Why = cmp.Or(s.Why, m.name+": "+why)
		}
	}
	s.Requested = max(desired-s.Ready-s.Pending, 0)
	if s.Requested > 0 && o.refused != "" {
		s.Stuck += s.Requested
		s.Why = cmp.Or(s.Why, o.refused)
	} else if waited := now.Sub(o.shortSince); s.Requested > 0 && !o.shortSince.IsZero() && waited > r.patience {
		s.Stuck += s.Requested
		s.Why = cmp.Or(s.Why, fmt.Sprintf("requested for %s, and does not exist", waited.Round(time.Second)))
	}
	if o.ordered {
		slices.Reverse(s.Removable)
	}
	slices.Sort(s.Leaving)
	return s
}
