package sim

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/tests/sim/simnet"
)

// K9: a worker dies before its first element, when elements are produced and none was sent, inside a large one,
// and when some have arrived. A partial element is dropped.
func TestK9AWorkerDiesAtAnyPointOfItsWork(t *testing.T) {
	kill := func(r *run) {
		_ = r.workers[0].end(killed)
		time.Sleep(2 * time.Second)
		r.startWorker(0)
		r.need(simnet.Kill)
	}
	t.Run("before the first element", func(t *testing.T) {
		scenario{data: large, epochs: 1, during: func(r *run) {
			r.eventually("streams are leased", time.Minute, func() bool { return len(granted(r.journal())) > 0 })
			kill(r)
		}}.check(t)
	})
	t.Run("before it is sent", func(t *testing.T) {
		scenario{data: large, epochs: 1, before: func(r *run) { r.net.Lose(workerIP(0), trainerIP(0), true) }, during: func(r *run) {
			r.eventually("elements are produced", time.Minute, func() bool { return count(r.journal(), endsStream) > 0 })
			kill(r)
			r.net.Lose(workerIP(0), trainerIP(0), false)
		}}.check(t)
	})
	t.Run("inside an element", func(t *testing.T) {
		scenario{data: large, epochs: 1, before: func(r *run) { r.net.CutAfter(workerIP(0), trainerIP(0), 700_000) }, during: func(r *run) {
			r.eventually("the connection is cut", time.Minute, func() bool { return r.net.Hits()[simnet.Cut] > 0 })
			kill(r)
		}}.check(t)
	})
	t.Run("when some have arrived", func(t *testing.T) {
		scenario{options: options{workers: 1}, data: large, epochs: 1, ahead: 1, during: func(r *run) {
			r.tr.after(7)
			kill(r)
			r.needMove()
		}}.check(t)
	})
}

// K15: a worker loses a lease while its frames are on their way. Late frames are dropped.
func TestK15LateFramesOfARevokedLeaseAreDropped(t *testing.T) {
	scenario{options: options{workers: 2}, data: uneven, ahead: 1, during: func(r *run) {
		r.tr.after(10)
		r.net.Slow(workerIP(0), trainerIP(0), 20*time.Second)
		r.net.Split(workerIP(0), dispatcherIP, true)
		r.needMove()
		r.need(simnet.Delay, simnet.Loss)
		time.Sleep(30 * time.Second)
		r.repairAll()
	}}.check(t)
}

// K15: a false next element comes under an old lease. It is dropped and counted.
func TestK15AnElementUnderAnOldLeaseIsDropped(t *testing.T) {
	scenario{options: options{workers: 2}, data: uneven, ahead: 1, pace: time.Millisecond, before: func(r *run) { r.ledger.stale.Store(20) }, after: needDrops}.check(t)
}

// K15: news of a lease comes late: a watch begins with a full update from before a stream moved. The trainer does not
// go back.
func TestK15TheTrainerDoesNotGoBackToAnOldLease(t *testing.T) {
	scenario{options: options{workers: 2, repeated: true}, data: uneven, ahead: 1, before: func(r *run) {
		// By watch: what its updates add up to, and that as it was when all streams had workers.
		var mu sync.Mutex
		whole, old := map[string]*pecanv1.EpochUpdate{}, map[string][]byte{}
		replayed := 0
		upset := func(method, watch string, number int, message []byte) [][]byte {
			update := new(pecanv1.EpochUpdate)
			if method != pecanv1.Dispatcher_WatchEpoch_FullMethodName || !unmarshal(message, update) {
				return [][]byte{message}
			}
			mu.Lock()
			defer mu.Unlock()
			if number == 0 && r.ledger.moved(r.tr) > 0 && old[watch] != nil {
				replayed++
				return [][]byte{old[watch], message}
			}
			if old[watch] == nil {
				if whole[watch] == nil {
					whole[watch] = new(pecanv1.EpochUpdate)
				}
				if addUpdate(whole[watch], update); leased(whole[watch]) {
					old[watch], _ = proto.Marshal(whole[watch])
				}
			}
			return [][]byte{message}
		}
		r.proxy.upset.Store(&upset)
		r.t.Cleanup(func() {
			if replayed == 0 {
				r.t.Error("no old snapshot was sent")
			}
		})
	}, during: func(r *run) {
		r.tr.after(10)
		_ = r.workers[0].end(powerCut)
		r.needMove()
		r.startWorker(0)
		// The watch breaks, and the next one begins with an old snapshot.
		at := int(r.tr.taken.Load())
		r.net.CutAfter(proxyIP, trainerIP(0), 0)
		r.tr.after(at + 20)
		r.need(simnet.PowerOff, simnet.Cut)
	}}.check(t)
}

// addUpdate adds an update of a watch to the sum of the updates before it.
func addUpdate(whole, update *pecanv1.EpochUpdate) {
	if update.GetFull() {
		proto.Reset(whole)
	}
	listed := map[uint32]bool{}
	for _, stream := range update.GetStreams() {
		listed[stream.GetStream()] = true
	}
	streams := slices.DeleteFunc(whole.Streams, func(stream *pecanv1.ConsumerStream) bool { return listed[stream.GetStream()] })
	workers := append(whole.Workers, update.GetWorkers()...)
	proto.Reset(whole)
	proto.Merge(whole, update)
	whole.Streams, whole.Workers, whole.Full = append(streams, update.GetStreams()...), workers, true
}

// leased reports whether all streams of an epoch have workers.
func leased(update *pecanv1.EpochUpdate) bool {
	for _, stream := range update.GetStreams() {
		if stream.GetWorkerNumber() == 0 {
			return false
		}
	}
	return len(update.GetStreams()) == streams
}

// N1: the dispatcher does not hear a worker that trainers reach. It moves the streams, and the trainers follow.
func TestN1TheStreamsOfAnUnreachableWorkerMove(t *testing.T) {
	scenario{options: options{workers: 2}, data: uneven, ahead: 1, pace: 200 * time.Millisecond, during: func(r *run) {
		r.tr.after(10)
		r.net.Split(workerIP(0), dispatcherIP, true)
		r.needMove()
		r.need(simnet.Loss)
		r.net.Split(workerIP(0), dispatcherIP, false)
	}}.check(t)
}

// N1: a worker and its trainer are on one side, the dispatcher on the other. The worker serves until its leases
// end, and then stops by itself.
func TestN1AWorkerStopsByItselfWhenItsLeasesEnd(t *testing.T) {
	ttl := options{}.dispatcher().Core.LeaseTTL
	scenario{options: options{workers: 1, clientTimeout: time.Hour}, data: uneven, ahead: 1, epochs: 1, pace: 10 * time.Second, during: func(r *run) {
		r.tr.after(3)
		r.net.Split(workerIP(0), dispatcherIP, true)
		r.net.Split(trainerIP(0), dispatcherIP, true)
		at := r.tr.taken.Load()
		time.Sleep(ttl - time.Minute)
		middle := r.tr.taken.Load()
		if middle == at {
			r.t.Error("no element arrived while the leases lasted")
		}
		// Only a few elements had arrived by then.
		time.Sleep(2 * time.Minute)
		end := r.tr.taken.Load()
		time.Sleep(3 * time.Minute)
		if now := r.tr.taken.Load(); now > end+streams {
			r.t.Errorf("%d elements came after the leases had ended", now-end)
		}
		r.need(simnet.Loss)
		r.repairAll()
	}}.check(t)
}

// N2: a trainer does not reach a worker that the dispatcher hears well. Its streams move; those of another
// trainer stay.
func TestN2ATrainerThatDoesNotReachAWorker(t *testing.T) {
	scenario{options: options{workers: 2, slots: 16}, data: uneven, ahead: 1, during: func(r *run) {
		other := r.join(1, wanted{dataset: uneven, mode: pecanv1.Mode_MODE_EXACTLY_ONCE, pace: 50 * time.Millisecond, ahead: 1})
		wait := other.reading(1)
		r.tr.after(10)
		r.net.Split(trainerIP(0), workerIP(0), true)
		r.needMove()
		r.need(simnet.Loss)
		r.net.Split(trainerIP(0), workerIP(0), false)
		wait()
		if n := r.ledger.moved(other); n > 0 {
			r.t.Errorf("%d streams of a trainer moved that reached all workers", n)
		}
		r.ledger.forget(other)
	}}.check(t)
}

// G1: a worker is paused. After 3 s nothing moves. After 30 s its streams move, and it returns with nothing.
func TestG1OnlyALongPauseMovesStreams(t *testing.T) {
	for _, paused := range []time.Duration{3 * time.Second, 30 * time.Second} {
		t.Run(fmt.Sprint(paused), func(t *testing.T) {
			scenario{options: options{workers: 2}, data: uneven, ahead: 1, during: func(r *run) {
				r.tr.after(10)
				host := r.net.Host(workerIP(0))
				host.Pause(true)
				time.Sleep(paused)
				host.Pause(false)
				r.tr.after(r.elements() / 2)
				r.need(simnet.Pause)
				if moved := r.ledger.moved(r.tr) > 0; moved != (paused > 10*time.Second) {
					r.t.Errorf("paused for %v; streams moved: %v", paused, moved)
				}
			}}.check(t)
		})
	}
}

// N10: a worker's host disappears silently. Its streams move as soon as the worker counts as dead.
func TestN10AWorkersHostThatDisappears(t *testing.T) {
	scenario{options: options{workers: 2}, data: uneven, ahead: 1, during: func(r *run) {
		r.tr.after(10)
		_ = r.workers[0].end(powerCut)
		began := time.Now()
		r.needMove()
		if took, most := time.Since(began), r.options.dispatcher().Core.DeadAfter+time.Second; took > most {
			r.t.Errorf("it took %v until a stream moved, %v is the most", took, most)
		}
		r.need(simnet.PowerOff)
		r.startWorker(0)
	}}.check(t)
}

// N10: the dispatcher's host disappears silently and returns, after a short or a long time. Workers notice by
// themselves before they count as dead, and nothing moves.
func TestN10ADispatchersHostThatDisappears(t *testing.T) {
	for _, away := range []time.Duration{12 * time.Second, 3 * time.Minute} {
		t.Run(fmt.Sprint(away), func(t *testing.T) {
			scenario{options: options{workers: 2, clientTimeout: 5 * time.Minute}, data: uneven, ahead: 1, pace: 2 * time.Second, epochs: 1, during: func(r *run) {
				r.tr.after(10)
				r.crashDispatcher(powerCut)
				time.Sleep(away)
				r.startDispatcher()
				time.Sleep(r.options.dispatcher().Core.DeadAfter)
				r.need(simnet.PowerOff)
				workers := r.tr.status().GetWorkers()
				if len(workers) != 2 {
					r.t.Errorf("%d workers are back", len(workers))
				}
				time.Sleep(10 * time.Second)
				if n := r.ledger.moved(r.tr); n > 0 {
					r.t.Errorf("%d streams moved", n)
				}
			}}.check(t)
		})
	}
}

// A worker dies in mode at-most-once, and runs do not repeat each other. The rest of its streams is truncated,
// and the dispatcher knows how much.
func TestTruncatedElementsAreCounted(t *testing.T) {
	simulate(t, options{}, func(c *cluster) {
		mode := pecanv1.Mode_MODE_AT_MOST_ONCE
		tr := c.join(0, wanted{dataset: free, mode: mode, pace: 50 * time.Millisecond, ahead: 1})
		wait := tr.reading(epochsRead)
		tr.after(4)
		if err := c.workers[0].end(killed); err != nil {
			t.Error(err)
		}
		wait()
		c.ledger.audit(free, promiseOf(mode), epochsRead)
		if c.lossesAreCounted(free) == 0 {
			t.Error("nothing was lost")
		}
		c.startWorker(0)
	})
}

// N1: a worker's report of its start is lost, but it sends elements. The dispatcher counts its streams as unread and leases
// them again. In mode at-most-once, where runs do not repeat each other, the trainers abandon what another run would send.
// They report that after the other run is complete. No trainer waits for abandoned elements, and they are counted.
func TestN1AbandonedStreamsEndAndAreCounted(t *testing.T) {
	simulate(t, options{}, func(c *cluster) {
		mode := pecanv1.Mode_MODE_AT_MOST_ONCE
		want := wanted{dataset: free, mode: mode, name: "team", pace: 3 * time.Second, ahead: 1}
		// The workers have the graph by then. An isolated worker cannot fetch it.
		first := c.join(2, wanted{dataset: free, mode: mode})
		if err := first.read(1); err != nil {
			t.Fatal(err)
		}
		first.stop()
		c.ledger.forget(first)
		var waits []func()
		team := []*trainer{c.join(0, want), c.join(1, want)}
		leases := len(granted(c.journal()))
		c.net.Lose(workerIP(0), dispatcherIP, true)
		for _, tr := range team {
			waits = append(waits, tr.reading(epochsRead))
		}
		for _, tr := range team {
			tr.after(2)
			c.net.Slow(trainerIP(tr.n), dispatcherIP, 2*time.Second)
		}
		c.eventually("streams are leased again", time.Minute, func() bool { return len(granted(c.journal())) > leases+streams })
		time.Sleep(10 * time.Second)
		c.repairAll()
		for _, wait := range waits {
			wait()
		}
		c.ledger.audit(free, promiseOf(mode), epochsRead)
		if c.abandonedByTrainers() == 0 || c.lossesAreCounted(free) == 0 {
			t.Error("no stream was abandoned")
		}
	})
}
