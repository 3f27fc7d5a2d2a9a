package provision

import (
	"context"
	"errors"
	"fmt"
)

// static is a pool of workers that somebody else starts and stops. It never gives more than are there.
type static struct{ registered func() int }

// newStatic returns a pool of the workers that registered counts.
func newStatic(registered func() int) *static { return &static{registered: registered} }

// Reconcile changes nothing. A worker that was asked to leave ends by itself.
func (s *static) Reconcile(_ context.Context, desired int, leaving []Address) (State, error) {
	state, err := s.state(leaving)
	state.Desired = desired
	if short := desired - state.Ready; short > 0 {
		state.Requested, state.Stuck = short, short
		state.Why = fmt.Sprintf("%d more workers must be started by hand: the pool is static", short)
	}
	return state, err
}

// Observe counts the registered workers.
func (s *static) Observe(context.Context) (State, error) { return s.state(nil) }

func (s *static) state(leaving []Address) (State, error) {
	if s.registered == nil {
		return State{}, errors.New("a static pool of workers needs the number of registered workers")
	}
	n := s.registered()
	ready := max(n-len(leaving), 0)
	return State{Desired: ready, Ready: ready, Leaving: leaving}, nil
}

// Close does nothing: the workers belong to somebody else.
func (s *static) Close() error { return nil }
