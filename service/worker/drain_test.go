package worker

import (
	"context"
	"testing"
	"time"

	"github.com/pecan-ml/pecan/proto/frame"
	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
)

// leaving is a worker of one stream, which drains after its reader has the first elements.
func leaving(t *testing.T, mode pecanv1.Mode, read bool) (w *Worker, o *pecanv1.StartStream, r *reader, count uint64, drained chan struct{}) {
	t.Helper()
	w = startWorker(t, func(c *Config) { c.WindowBytes, c.DrainTimeout = 1<<20, deadline })
	o = planned(t, w, "slow_shuffle")
	o.Options.Mode = mode
	w.streams.Start(o)
	w.session.mu.Lock()
	w.session.connected = true
	w.session.mu.Unlock()
	if read {
		r = dialTCP(t, w)
		r.open(1, opening(o))
		count = uint64(mustNext(t, r).header.Count)
	} else {
		waitFor(t, "the first elements are made", func() bool { return w.streams.Loads()[0].Produced > 0 })
	}
	drained = make(chan struct{})
	go func() {
		w.drain(context.Background(), w.config.DrainTimeout)
		close(drained)
	}()
	return w, o, r, count, drained
}

func mustNext(t *testing.T, r *reader) got {
	t.Helper()
	g, err := r.next()
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// In mode at most once, no other worker may continue a stream that was read, unless it can do so without loss.
func TestALeavingWorkerFinishesStreamsThatMayNotMove(t *testing.T) {
	w, o, r, count, drained := leaving(t, pecanv1.Mode_MODE_AT_MOST_ONCE, true)
	for ended := false; !ended; {
		g := mustNext(t, r)
		count += uint64(g.header.Count)
		r.credit(1, count, 1<<40)
		ended = g.header.Type == frame.End
	}
	if count != 4000 {
		t.Errorf("%d elements came", count)
	}
	select {
	case <-drained:
		t.Error("the worker left before its report of the end arrived")
	default:
	}
	w.streams.Stop(&pecanv1.StopStream{Id: o.Id, Lease: o.Lease})
	<-drained
}

func TestALeavingWorkerReturnsUnreadStreams(t *testing.T) {
	w, _, _, _, drained := leaving(t, pecanv1.Mode_MODE_AT_MOST_ONCE, false)
	<-drained
	if load := w.streams.Loads()[0]; !load.Drained || !load.Unread || load.Produced == 4000 {
		t.Errorf("the heartbeat has %v", load)
	}
}

// A reader that takes nothing would hold the worker up until the drain timeout. A stream that can begin at any index does
// not wait for it.
func TestALeavingWorkerDoesNotWaitForASlowReaderOfAStreamThatCanBeginAnywhere(t *testing.T) {
	for strategy, waits := range map[pecanv1.Resume_Strategy]bool{pecanv1.Resume_SEEK: false, pecanv1.Resume_PARTIAL: true, pecanv1.Resume_RECOMPUTE: true} {
		t.Run(strategy.String(), func(t *testing.T) {
			timeout := deadline
			if waits {
				timeout = 2 * patience
			}
			w := startWorker(t, func(c *Config) { c.WindowBytes = 1 << 20 })
			o := planned(t, w, "slow_shuffle")
			o.Options.Mode, o.Plan.Resume = pecanv1.Mode_MODE_EXACTLY_ONCE, &pecanv1.Resume{Strategy: strategy}
			w.streams.Start(o)
			w.session.mu.Lock()
			w.session.connected = true
			w.session.mu.Unlock()
			r := dialTCP(t, w)
			r.open(1, opening(o))
			mustNext(t, r)
			begun := time.Now()
			w.drain(context.Background(), timeout)
			load := w.streams.Loads()[0]
			if load.Drained == waits || load.Unread || load.Acked >= load.Produced {
				t.Errorf("the heartbeat has %v", load)
			}
			if took := time.Since(begun); took < patience || !waits && took > deadline/2 {
				t.Errorf("the worker took %v", took)
			}
		})
	}
}

// A worker that the dispatcher tells to leave says that it is leaving, says goodbye and ends without an error.
func TestALeaveCommandIsAPlannedDeparture(t *testing.T) {
	c := newCommander()
	config := testConfig()
	config.Dispatcher, config.DispatcherTimeout, config.DrainTimeout = c.listen(t, "127.0.0.1:0"), deadline, deadline
	ended := make(chan error, 1)
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	go func() { ended <- Run(ctx, config) }()
	c.hello(t)
	await(t, c, "a heartbeat", func(m *pecanv1.WorkerMessage) (struct{}, bool) {
		return struct{}{}, m.GetHeartbeat() != nil && !m.GetHeartbeat().Leaving
	})
	for range 2 {
		c.commands <- &pecanv1.WorkerCommand{Kind: &pecanv1.WorkerCommand_Leave{Leave: &pecanv1.Leave{Why: "the test asks", DrainTimeoutS: 20}}}
	}
	await(t, c, "a heartbeat of a worker that leaves", func(m *pecanv1.WorkerMessage) (struct{}, bool) { return struct{}{}, m.GetHeartbeat().GetLeaving() })
	await(t, c, "the goodbye", func(m *pecanv1.WorkerMessage) (struct{}, bool) { return struct{}{}, m.GetGoodbye() != nil })
	select {
	case err := <-ended:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(deadline):
		t.Error("the worker has not ended")
	}
}
