package worker

import (
	"context"
	"testing"

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
		waitFor(t, "the first elements are made", func() bool { return w.heartbeat().Streams[0].Produced > 0 })
	}
	drained = make(chan struct{})
	go func() {
		w.drain(context.Background())
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
	if load := w.heartbeat().Streams[0]; !load.Drained || !load.Unread || load.Produced == 4000 {
		t.Errorf("the heartbeat has %v", load)
	}
}
