package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/proto/reason"
	"github.com/pecan-ml/pecan/service/internal/clock"
	"github.com/pecan-ml/pecan/service/provision"
)

// scalePoll is the time between two looks at the provider.
const scalePoll = 500 * time.Millisecond

// scale moves the number of workers to args[0] and waits for it. It may be repeated after an interruption: workers that were
// asked to leave are known to the provider.
func scale(ctx context.Context, o *options, args []string, out io.Writer) error {
	if len(args) != 1 {
		return fmt.Errorf("scale wants a number of workers, got %q", strings.Join(args, " "))
	}
	desired, err := strconv.Atoi(args[0])
	if err != nil || desired < 0 {
		return fmt.Errorf("scale wants a number of workers, got %q", args[0])
	}
	if o.provider == "" {
		return errors.New("--provider is missing: give kubernetes:deployment/NAME or kubernetes:statefulset/NAME")
	}
	if o.provider == "local" || o.provider == "static" {
		return fmt.Errorf("--provider %s: pecanctl cannot scale it, because its workers end with their dispatcher or belong to somebody else", o.provider)
	}
	if err := scaledByDispatcher(ctx, o); err != nil {
		return err
	}
	provider, err := provision.Open(o.provider, provision.Options{Kubeconfig: o.kubeconfig})
	if err != nil {
		return err
	}
	defer provider.Close()
	ctx, cancel := context.WithTimeout(ctx, o.wait)
	defer cancel()
	return reconcile(ctx, o, provider, desired, out)
}

// scaledByDispatcher returns an error if the dispatcher asks the provider for workers itself. A dispatcher that does not
// answer asks for none.
func scaledByDispatcher(ctx context.Context, o *options) (err error) {
	_ = ask(ctx, o, func(ctx context.Context, api pecanv1.DispatcherClient) error {
		status, failed := api.Status(ctx, &pecanv1.StatusRequest{})
		if p := status.GetProvider(); failed == nil && p != nil && p.Name != "static" {
			err = fmt.Errorf("the dispatcher %s asks %s for workers itself, %d to %d of them: start it with other --min-workers and --max-workers, or without --workers-provider", o.dispatcher, p.Name, p.Min, p.Max)
		}
		return failed
	})
	return err
}

// reconcile acts until the provider has what is desired, or cannot give it.
func reconcile(ctx context.Context, o *options, provider provision.Provider, desired int, out io.Writer) error {
	var leaving []provision.Address
	chosen, shown := false, ""
	for {
		state, err := provider.Observe(ctx)
		if err == nil && !chosen {
			if leaving, err = chooseLeaving(ctx, o, state, desired); err != nil {
				return err
			}
			chosen = true
		}
		if err == nil {
			state, err = provider.Reconcile(ctx, desired, leaving)
		}
		line := state.String()
		if err != nil {
			line = err.Error() + "; trying again"
		}
		if line != shown {
			fmt.Fprintln(out, line)
			shown = line
		}
		switch {
		case err == nil && state.Ready == desired && state.Requested+state.Pending+len(state.Leaving) == 0:
			return nil
		case err == nil && state.Stuck > 0 && state.Ready == state.Expected() && len(state.Leaving) == 0:
			return fmt.Errorf("%d of %d workers cannot be had now; the provider starts them when it can: %s", state.Stuck, desired, state.Why)
		case !clock.Sleep(ctx, scalePoll):
			return fmt.Errorf("not done after %s: %s", o.wait, line)
		}
	}
}

// chooseLeaving returns the workers that leave: those that leave already, and of the others those with the fewest streams.
func chooseLeaving(ctx context.Context, o *options, s provision.State, desired int) ([]provision.Address, error) {
	if s.Ready <= desired {
		return s.Leaving, nil
	}
	var status *pecanv1.StatusResponse
	err := ask(ctx, o, func(ctx context.Context, api pecanv1.DispatcherClient) (err error) {
		status, err = api.Status(ctx, &pecanv1.StatusRequest{})
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("ask dispatcher %s which workers have the fewest streams: %s", o.dispatcher, reason.From(err).Message)
	}
	candidates := slices.Clone(s.Removable)
	if !s.Ordered {
		slices.SortStableFunc(candidates, func(a, b provision.Address) int { return cmp.Compare(streams(status, a), streams(status, b)) })
	}
	return append(slices.Clone(s.Leaving), candidates[:s.Ready-desired]...), nil
}

// streams counts the streams that a worker runs. A worker that has not registered has none.
func streams(status *pecanv1.StatusResponse, a provision.Address) int {
	count := 0
	for _, w := range status.Workers {
		if !a.Same(provision.Address(w.Address.GetTcp())) {
			continue
		}
		for _, held := range w.Streams {
			if !held.Ended {
				count++
			}
		}
	}
	return count
}
