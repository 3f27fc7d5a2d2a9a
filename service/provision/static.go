package provision

import (
	"context"
	"errors"
	"fmt"
)

// Static is a pool of workers that somebody else starts and stops. It never gives more than are there.
type Static struct{ registered func() int }

// NewStatic returns a pool of the workers that registered counts.
func NewStatic(registered func() int) *Static { return &Static{registered: registered} }

// Reconcile changes nothing. A worker that was asked to leave ends by itself.
func (s *Static) Reconcile(_ context.Context, desired int, leaving []Address) (State, error) {
	state, err := s.state(leaving)
	state.Desired = desired
	if short := desired - state.Ready; short > 0 {
		state.Requested, state.Stuck = short, short
		state.Why = fmt.Sprintf("%d more workers must be started by hand: the pool is static", short)
	}
	return state, err
}

// Observe counts the registered workers.
func (s *Static) Observe(context.Context) (State, error) { return s.state(nil) }

func (s *Static) state(leaving []Address) (State, error) {
	if s.registered == nil {
		return State{}, errors.New("a static pool of workers needs the number of registered workers")
	}
	n := s.registered()
	ready := max(n-len(leaving), 0)
	return State{Desired: ready, Ready: ready, Leaving: leaving}, nil
}

// Close does nothing: the workers belong to somebody else.
func (s *Static) Close() error { return nil }
