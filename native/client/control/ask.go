package control

import (
	"context"
	"errors"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pecan-ml/pecan/native/client/wait"
	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/proto/reason"
)

// greet waits for the dispatcher's first answer.
func (l *Link) greet(ctx context.Context) error {
	began := time.Now()
	ctx, cancel := context.WithTimeout(ctx, l.config.Timeout)
	defer cancel()
	var pause wait.Backoff
	for {
		answer, err := l.api.Status(ctx, &pecanv1.StatusRequest{}, grpc.WaitForReady(true))
		switch {
		case err == nil:
			l.SetCluster(answer.GetClusterId())
			return nil
		case isForeignServer(err):
			return reason.New(reason.Unavailable, "connect to the dispatcher at %s: something answers there, but is no Pecan dispatcher (%s): "+
				"give the address that pecan-dispatcher prints when it serves", l.target.shown,
				strings.TrimSuffix(status.Code(err).String()+": "+reason.From(err).Message, ": "))
		case !IsOutage(err) || !pause.Wait(ctx):
			return l.unreached("connect to", began, err)
		}
		// An established connection broke: the dispatcher is stopping or starting at this moment.
	}
}

// unreached explains a failed call: what was tried, for how long, and what to do. Errors that are no outage
// pass unchanged.
func (l *Link) unreached(what string, began time.Time, err error) error {
	own := reason.From(err)
	switch {
	case !IsOutage(err):
		return own
	case status.Code(err) == codes.Canceled || errors.Is(err, context.Canceled):
		return reason.New(reason.Closed, "%s the dispatcher at %s: canceled after %.1f s", what, l.target.shown, time.Since(began).Seconds())
	}
	return reason.New(reason.Unavailable, "%s the dispatcher at %s: no answer for %.1f s (%s): see that pecan-dispatcher runs there and "+
		"can be reached from this host, or give a longer dispatcher timeout", what, l.target.shown, time.Since(began).Seconds(), own.Message)
}

// isForeignServer reports whether no Pecan dispatcher gave a first answer: the server does not know the call,
// or does not speak gRPC. A Pecan dispatcher puts a reason code into every refusal.
func isForeignServer(err error) bool {
	switch status.Code(err) {
	case codes.Unimplemented, codes.Unknown:
		return reason.From(err).Reason == reason.Internal && !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, context.Canceled)
	}
	return false
}

// IsOutage reports whether a call failed because the dispatcher could not be reached. It is false for the
// dispatcher's answers.
func IsOutage(err error) bool {
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		return true
	}
	switch status.Code(err) {
	case codes.Unavailable:
		// A dispatcher that refuses a call because it lacks something sends one of Pecan's reason codes.
		return reason.From(err).Reason == reason.Unavailable
	case codes.ResourceExhausted:
		// The dispatcher continues by itself when its disk has space again.
		return reason.From(err).Reason == reason.StoreFull
	case codes.DeadlineExceeded, codes.Canceled:
		return true
	}
	return false
}

// Observe records whether the dispatcher answers.
func (l *Link) Observe(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case err == nil || !IsOutage(err):
		if !l.downSince.IsZero() {
			l.log.Info("the dispatcher answers again", "dispatcher", l.target.shown, "away_s", time.Since(l.downSince).Seconds())
		}
		l.downSince, l.downWhy = time.Time{}, ""
	case status.Code(err) == codes.Canceled || errors.Is(err, context.Canceled):
	default:
		if l.downSince.IsZero() {
			l.downSince = time.Now()
			l.log.Warn("the dispatcher does not answer", "dispatcher", l.target.shown, "error", err)
		}
		l.downWhy = reason.From(err).Message
	}
}

// Away returns for how long the dispatcher has not answered, and why.
func (l *Link) Away() (time.Duration, string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.downSince.IsZero() {
		return 0, ""
	}
	return time.Since(l.downSince), l.downWhy
}

// Check fails in a forked process and after Refuse. Every entry point calls it first.
func (l *Link) Check() error {
	if err := l.CheckFork(); err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return reason.New(reason.Closed, "the session with the dispatcher at %s is closed", l.target.shown)
	}
	return nil
}

// Ask makes a call that a user waits for. It repeats the call while the dispatcher is away, until ctx or the
// timeout ends.
func (l *Link) Ask(ctx context.Context, what string, call func(context.Context) error) error {
	if err := l.Check(); err != nil {
		return err
	}
	began := time.Now()
	ctx, cancel := context.WithTimeout(ctx, l.config.Timeout)
	defer cancel()
	defer context.AfterFunc(l.ctx, cancel)()
	var pause wait.Backoff
	for {
		err := call(ctx)
		l.Observe(err)
		if err == nil {
			return nil
		}
		if !IsOutage(err) || ctx.Err() != nil || !pause.Wait(ctx) {
			return l.unreached(what, began, err)
		}
	}
}
