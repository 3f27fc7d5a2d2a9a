package client

import (
	"testing"
	"time"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
)

// The dispatcher ends a pass that heartbeats do not name, without the trainer's last reports. So heartbeats name a pass
// until the trainer has reported its end.
func TestHeartbeatsNameAPassUntilItsEndIsReported(t *testing.T) {
	d := startDispatcher(t)
	d.updateOf = spread(1, startWorker(t, same(testStream{count: 10})))
	job := open(t, d)
	named := func(heartbeats int) bool {
		return look(d, func() bool {
			return len(d.heartbeats) >= heartbeats && len(d.heartbeats[len(d.heartbeats)-1].GetPasses()) == 1
		})
	}
	look(d, func() int { d.loseCloses = 1 << 30; return 0 })
	if _, err := read(t, job.Open(IterOptions{NoPrefetch: true})); err != nil {
		t.Fatal(err)
	}
	begun := look(d, func() int { return len(d.heartbeats) })
	eventually(t, "the pass is named, over and over again", func() bool { return named(begun + 3) })
	look(d, func() int { d.loseCloses = 0; return 0 })
	eventually(t, "the epoch is closed", func() bool { return look(d, func() int { return len(d.closed) }) == 1 })
	eventually(t, "it is not named any more", func() bool {
		return look(d, func() bool { return len(d.heartbeats[len(d.heartbeats)-1].GetPasses()) == 0 })
	})
}

// Heartbeats may arrive late or twice, so they have numbers. The request of a pass carries the newest number. Until the
// answer arrives, heartbeats report that there may be a pass that they cannot name.
func TestHeartbeatNumbersOrderHeartbeatsAndOpenings(t *testing.T) {
	d := startDispatcher(t)
	d.updateOf = spread(1, startWorker(t, same(testStream{count: 10})))
	held := make(chan struct{})
	d.update(func() { d.holdOpens = held })
	job := open(t, d)
	eventually(t, "there were heartbeats", func() bool { return look(d, func() bool { return len(d.heartbeats) >= 3 }) })
	it := job.Open(IterOptions{NoPrefetch: true})
	last := func() *pecanv1.ClientHeartbeatRequest {
		return look(d, func() *pecanv1.ClientHeartbeatRequest { return d.heartbeats[len(d.heartbeats)-1] })
	}
	eventually(t, "heartbeats tell that a pass is asked for", func() bool { return last().GetOpening() && len(last().GetPasses()) == 0 })
	close(held)
	if _, err := readUpTo(t, it, 1); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the pass is named", func() bool { return !last().GetOpening() && len(last().GetPasses()) == 1 })
	look(d, func() any {
		asked := d.opened[0].GetHeartbeatNumber()
		if asked == 0 {
			t.Error("the pass was asked for without the number of a heartbeat")
		}
		for n, heartbeat := range d.heartbeats {
			if heartbeat.GetNumber() != uint64(n+1) {
				t.Errorf("heartbeat %d has the number %d", n+1, heartbeat.GetNumber())
			}
			if named := len(heartbeat.GetPasses()) > 0; heartbeat.GetNumber() > asked && !named && !heartbeat.GetOpening() {
				t.Errorf("heartbeat %d speaks as if there were no pass, which was asked for after heartbeat %d", n+1, asked)
			}
		}
		return nil
	})
}

func TestHeartbeatsReportAnOpeningPassAfterItsClose(t *testing.T) {
	d := startDispatcher(t)
	d.updateOf = spread(1, startWorker(t, same(testStream{count: 10})))
	held := make(chan struct{})
	d.update(func() { d.holdOpens = held })
	job := open(t, d)
	job.consumer.Request.JobName = "shared"
	heartbeats := func() int { return look(d, func() int { return len(d.heartbeats) }) }
	it := job.Open(IterOptions{NoPrefetch: true})
	eventually(t, "the pass is asked for", func() bool { return look(d, func() bool { return d.asksOpen }) })
	if err := it.Close(); err != nil {
		t.Fatal(err)
	}
	// A heartbeat may have been in flight.
	closed := heartbeats() + 1
	eventually(t, "heartbeats come", func() bool { return heartbeats() > closed+3 })
	look(d, func() any {
		for _, heartbeat := range d.heartbeats[closed:] {
			if !heartbeat.GetOpening() {
				t.Errorf("heartbeat %d speaks as if no pass were asked for", heartbeat.GetNumber())
			}
		}
		return nil
	})
	close(held)
	eventually(t, "the epoch is closed", func() bool { return look(d, func() int { return len(d.closed) }) == 1 })
}

func TestTheHeartbeatReportsTheTrainersProgress(t *testing.T) {
	hold := make(chan struct{})
	d := startDispatcher(t)
	d.updateOf = spread(1, startWorker(t, same(testStream{count: 10, hold: hold, holdAt: 4})))
	job := open(t, d)
	it := job.Open(IterOptions{})
	if _, err := readUpTo(t, it, 4); err != nil {
		t.Fatal(err)
	}
	it.NextElement(20 * time.Millisecond)
	last := func() *pecanv1.ClientHeartbeatRequest_Pass {
		return look(d, func() *pecanv1.ClientHeartbeatRequest_Pass {
			if n := len(d.heartbeats); n > 0 && len(d.heartbeats[n-1].GetPasses()) == 1 {
				return d.heartbeats[n-1].GetPasses()[0]
			}
			return nil
		})
	}
	eventually(t, "the report that the trainer waits", func() bool {
		p := last()
		return p != nil && p.GetStarved() && p.GetElements() == 4 && p.GetBytes() == 32 && p.GetWaitedS() > 0
	})
	close(hold)
	if _, err := readUpTo(t, it, 1); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the report that the trainer no longer waits", func() bool { return !last().GetStarved() })
}
