package client

import (
	"testing"
	"time"

	"github.com/pecan-ml/pecan/proto/reason"
)

// The dispatcher may handle the last heartbeat of a job after the job's goodbye.
func TestAClosedJobDoesNotComeBack(t *testing.T) {
	t.Parallel()
	hold := make(chan struct{})
	d := startDispatcher(t, func(d *testDispatcher) { d.delayHeartbeats, d.forget = hold, true })
	job := open(t, d)
	eventually(t, "a heartbeat is under way", func() bool { return look(d, func() bool { return d.delayedHeartbeats > 0 }) })
	if err := job.Close(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the dispatcher has the goodbye", func() bool { return look(d, func() bool { return d.goodbyes == 1 }) })
	close(hold)
	for end := time.Now().Add(300 * time.Millisecond); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if asked := look(d, func() int { return d.asked }); asked != 1 {
			t.Fatalf("the client created the job %d times", asked)
		}
	}
}

// A restarted dispatcher may have another client timeout than the dispatcher that created the job.
func TestHeartbeatsFollowTheDispatchersLatestTimeout(t *testing.T) {
	d := startDispatcher(t)
	job := open(t, d)
	s := job.session
	keeps := func(timeoutS float64, interval time.Duration) {
		t.Helper()
		eventually(t, "heartbeats say that the timeout is known", func() bool {
			return look(d, func() bool {
				return len(d.heartbeats) > 0 && d.heartbeats[len(d.heartbeats)-1].GetClientTimeoutS() == timeoutS
			})
		})
		if got := s.heartbeatInterval(); got != interval {
			t.Errorf("with a timeout of %v s heartbeats come every %v, want %v", timeoutS, got, interval)
		}
	}
	keeps(10, 20*time.Millisecond)
	for _, timeoutS := range []float64{0.05, 0.025, 60} {
		d.update(func() { d.timeoutS = timeoutS })
		keeps(timeoutS, min(20*time.Millisecond, time.Duration(timeoutS/5*float64(time.Second))))
	}
}

// After the client timeout the dispatcher assigns the elements in this client's queue to other clients.
func TestASharedJobsQueueIsNotReturnedAfterTheClientsTimeout(t *testing.T) {
	for name, forgotten := range map[string]bool{"in time": false, "forgotten": true} {
		t.Run(name, func(t *testing.T) {
			w := startWorker(t, same(testStream{count: 50}))
			d := startDispatcher(t, func(d *testDispatcher) { d.timeoutS = 0.2 })
			d.updateOf = spread(1, w)
			job := open(t, d)
			job.consumer.Request.JobName = "shared"
			it := job.Open(IterOptions{NoPrefetch: true})
			first, err := readUpTo(t, it, 5)
			if err != nil {
				t.Fatal(err)
			}
			eventually(t, "more waits", func() bool { return it.epoch().State().Streams[0].Queued > 0 })
			held := make(chan struct{})
			d.update(func() { d.delayHeartbeats = held })
			eventually(t, "no heartbeat of the trainer has arrived for too long", func() bool { return !job.consumer.LeaseHolds() })
			if _, status, err := it.NextElement(10 * time.Millisecond); status != NotYet {
				t.Fatalf("%v, %v", status, err)
			}
			d.update(func() { d.delayHeartbeats, d.forget = nil, forgotten })
			close(held)
			rest, err := read(t, it)
			if !forgotten {
				if err != nil {
					t.Fatal(err)
				}
				wantAll(t, append(first, rest...), 50)
				return
			}
			if !reason.Is(err, reason.ClientUnknown) || len(rest) != 0 {
				t.Errorf("%d elements more, and %v", len(rest), err)
			}
		})
	}
}
