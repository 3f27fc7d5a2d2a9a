package run

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pecan-ml/pecan/service/worker/window"
)

// Streams whose first elements take long share the opening lock at all times, one or another of them.
func TestAnExclusiveOpeningComesBetweenFirstElementsThatOverlap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := New(slog.New(slog.DiscardHandler))
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		for stream := range time.Duration(3) {
			go func() {
				time.Sleep(stream * time.Second)
				for w.openings.acquire(ctx) == nil {
					time.Sleep(3 * time.Second)
					w.openings.release()
				}
			}()
		}
		time.Sleep(5 * time.Second)
		if !w.openExclusively(ctx) {
			t.Fatal("it did not get the lock within an hour")
		}
		cancel()
	})
}

// The first element of a stream may hang.
func TestNothingWaitsLongBehindAnExclusiveOpeningThatQueues(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := New(slog.New(slog.DiscardHandler))
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		if err := w.openings.acquire(ctx); err != nil {
			t.Fatal(err)
		}
		var over atomic.Bool
		go func() {
			if w.openExclusively(ctx) {
				t.Error("it was opened beside another")
			}
			over.Store(true)
		}()
		for longest := time.Duration(0); ; time.Sleep(time.Second) {
			begun := time.Now()
			if w.openings.acquire(ctx) != nil {
				break
			}
			w.openings.release()
			if longest = max(longest, time.Since(begun)); longest > lastPeriod {
				t.Fatalf("another stream waited for %v", longest)
			}
		}
		if synctest.Wait(); !over.Load() {
			t.Error("it waits on after its end")
		}
	})
}

func TestAStoppedRunDoesNotWaitForTheOpeningLock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := New(slog.New(slog.DiscardHandler))
		if !w.openExclusively(t.Context()) {
			t.Fatal("the lock is held")
		}
		opens, begins := &run{stream: &Stream{streams: w}}, &run{stream: &Stream{streams: w}}
		begins.pooled, begins.window = []pooledUse{{}}, window.New(&w.windowBytes, nil, window.Start{})
		var errs []error
		for r, wait := range map[*run]func() error{
			opens: func() error {
				_, err := opens.openLocked()
				return err
			},
			begins: func() error { return begins.guardedFetch(nil) },
		} {
			var stop context.CancelFunc
			r.ctx, stop = context.WithCancel(t.Context())
			go func() { errs = append(errs, wait()) }()
			if synctest.Wait(); len(errs) > 0 {
				t.Fatal("it did not wait: ", errs)
			}
			stop()
			if synctest.Wait(); len(errs) != 1 || !errors.Is(errs[0], context.Canceled) && !errors.Is(errs[0], errStopped) {
				t.Fatal("a stopped run ended with ", errs)
			}
			errs = nil
		}
	})
}
