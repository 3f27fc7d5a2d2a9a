package fleet

import (
	"fmt"
	"slices"
	"time"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
)

const (
	// After the provider could not give more workers, decisions count for firstBound only on workers that it can give. The
	// time doubles, up to lastBound, each time that the provider still cannot give more.
	firstBound = time.Minute
	lastBound  = 30 * time.Minute
)

// Limits are the settings of a fleet.
type Limits struct {
	// Provider names what starts and stops workers. If it is empty, nothing does, and there is no fleet.
	Provider string
	// Fixed is set if the provider starts no worker, so no worker is asked to leave.
	Fixed bool
	// Min and Max bound the number of workers that the provider is asked for.
	Min, Max int
	// Idle is how long fewer workers must suffice before some leave.
	Idle time.Duration
	// Drain bounds the time in which a worker that is asked to leave hands its streams over; 0: its own bound.
	Drain time.Duration
}

// State has the provider's workers, as in package provision. Addresses come from the provider.
type State struct {
	Desired, Requested, Pending, Ready, Stuck int
	Leaving, Removable                        []string
	Ordered                                   bool
	Why                                       string
}

// expected is the number of workers that can be counted on soon.
func (s State) expected() int { return s.Requested + s.Pending + s.Ready - s.Stuck }

// Answer is the result of a call of the provider.
type Answer struct {
	State State
	// Asked is the request that the call made; nil if it only looked.
	Asked *Request
	// Error is why the provider could not be asked; State is then the last known one.
	Error string
}

// Request asks the provider for Desired workers, and to remove those in Leaving.
type Request struct {
	Desired int
	Leaving []string
}

// Fleet is the workers of a provider.
type Fleet struct {
	limits Limits
	state  State
	// known is set if the provider has answered once.
	known bool
	err   string
	// wanted is the number that jobs want now. desired is the number in the newest request.
	wanted, desired int
	// fewerSince is the time since which fewer workers suffice. most is the largest number that was wanted since.
	fewerSince time.Duration
	less       bool
	most       int
	// leaving are the workers that leave, by the provider's addresses.
	leaving []string
	leaves  places
	// bound is the number of workers that can be had until boundEnd; boundFor is its length.
	bound              int
	boundEnd, boundFor time.Duration
	// sent is the last request; nil before the first.
	sent *Request
}

// New returns a fleet that knows nothing of its provider.
func New(limits Limits) *Fleet { return &Fleet{limits: limits} }

// Provided reports whether something starts workers.
func (f *Fleet) Provided() bool { return f.limits.Provider != "" }

// Answered takes an answer of the provider.
func (f *Fleet) Answered(now time.Duration, a Answer) {
	if f.err = a.Error; a.Error != "" {
		return
	}
	if !f.known {
		// An earlier process asked for that number.
		f.known, f.desired = true, min(max(a.State.Desired, f.limits.Min), f.limits.Max)
		f.setLeaving(slices.Clone(a.State.Leaving))
	}
	f.state = a.State
	if a.Asked != nil {
		asked, left := setOf(a.Asked.Leaving), setOf(slices.Concat(a.State.Leaving, a.State.Removable))
		f.setLeaving(slices.DeleteFunc(f.leaving, func(address string) bool { return asked[address] && !left[address] }))
	}
	switch {
	case a.State.Stuck > 0:
		if now >= f.boundEnd {
			f.boundFor = min(max(2*f.boundFor, firstBound), lastBound)
		}
		f.bound, f.boundEnd = a.State.expected(), now+f.boundFor
	case now >= f.boundEnd && a.State.Requested+a.State.Pending == 0 && a.State.Ready > f.bound:
		f.boundFor = 0
	}
}

// Attainable returns how many remote workers a job may count on, of which some are registered. A provider that cannot be asked
// gives no more.
func (f *Fleet) Attainable(now time.Duration, registered int) int {
	switch {
	case !f.Provided() || !f.known || f.limits.Fixed || f.err != "":
		return registered
	case now < f.boundEnd:
		return max(registered, min(f.bound, f.limits.Max))
	}
	return max(registered, f.limits.Max)
}

// Coming reports whether the provider is about to give more workers.
func (f *Fleet) Coming() bool {
	return f.Provided() && f.known && !f.limits.Fixed && f.err == "" && (f.desired > f.state.Desired || f.state.Requested+f.state.Pending > f.state.Stuck)
}

// Decide decides how many workers are asked for, and which ones leave. wanted is the number that jobs want. With keep, no
// worker leaves, because a job uses all that there are. workers returns the registered remote workers. Decide returns nil if
// nothing has changed.
func (f *Fleet) Decide(now time.Duration, wanted int, keep bool, workers func() []Worker) *Request {
	f.wanted = wanted
	if !f.Provided() || !f.known {
		return nil
	}
	wanted = min(max(wanted, f.limits.Min), f.limits.Max)
	if keep {
		wanted = max(wanted, f.desired)
	}
	switch {
	case wanted >= f.desired:
		f.desired, f.less = wanted, false
	case !f.less:
		f.less, f.fewerSince, f.most = true, now, wanted
	default:
		f.most = max(f.most, wanted)
	}
	if f.less && now-f.fewerSince >= f.limits.Idle {
		f.desired, f.less = f.most, false
	}
	f.dismiss(workers)
	next := &Request{Desired: f.desired, Leaving: slices.Clone(f.leaving)}
	if f.sent != nil && f.sent.Desired == next.Desired && slices.Equal(f.sent.Leaving, next.Leaving) {
		return nil
	}
	f.sent = next
	return next
}

// Waiting says what has become of the workers that the provider was asked for; empty if nothing starts workers.
func (f *Fleet) Waiting() string {
	s := f.state
	switch {
	case !f.Provided() || f.limits.Fixed:
		return ""
	case f.err != "":
		return fmt.Sprintf("no worker can serve the job, and a call of the provider of workers (%s) failed: %s", f.limits.Provider, f.err)
	case s.Stuck > 0 && s.expected() == 0:
		return fmt.Sprintf("no worker can serve the job, and the provider of workers (%s) cannot give one now: %s", f.limits.Provider, s.Why)
	}
	return fmt.Sprintf("waiting for workers of the provider (%s): %d requested, %d pending", f.limits.Provider, max(s.Requested, f.desired-s.Pending-s.Ready), s.Pending)
}

// Status describes the fleet; nil if nothing provides workers.
func (f *Fleet) Status() *pecanv1.ProviderStatus {
	if !f.Provided() {
		return nil
	}
	count := func(n int) uint32 { return uint32(max(n, 0)) }
	s := f.state
	return &pecanv1.ProviderStatus{
		Name: f.limits.Provider, Wanted: count(f.wanted), Desired: count(f.desired), Min: count(f.limits.Min), Max: count(f.limits.Max),
		Requested: count(s.Requested), Pending: count(s.Pending), Ready: count(s.Ready), Leaving: s.Leaving, Stuck: count(s.Stuck), Why: s.Why, Error: f.err,
	}
}
