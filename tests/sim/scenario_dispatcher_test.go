package sim

import (
	"sync/atomic"
	"testing"
	"time"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/tests/sim/simnet"
)

// count returns the number of records of a kind.
func count(records []*pecanv1.Record, of func(*pecanv1.Record) bool) int {
	n := 0
	for _, record := range records {
		if of(record) {
			n++
		}
	}
	return n
}

// needOnePass fails the test unless the journal has one pass that was begun, and exactly one epoch for each
// opening.
func (r *run) needOnePass() {
	r.t.Helper()
	records := r.journal()
	begun := count(records, func(r *pecanv1.Record) bool { return r.GetEpochJoined() != nil && !r.GetEpochJoined().GetPrefetch() })
	joined := count(records, func(r *pecanv1.Record) bool { return r.GetEpochJoined() != nil })
	if opened := count(records, opensEpoch); begun != 1 || opened != joined {
		r.t.Errorf("%d passes were begun, want 1; %d epochs were opened by %d requests", begun, opened, joined)
	}
}

// K1, K2, K3: the dispatcher dies around the write that opens an epoch. The repeated request gets the same epoch,
// and the journal has one for every pass.
func TestK1K2K3TheOpeningOfAnEpochHappensOnce(t *testing.T) {
	for name, at := range points {
		t.Run(name, func(t *testing.T) {
			scenario{epochs: 1, during: func(r *run) {
				r.crash(at, opensEpoch)
				r.tr.after(r.elements() / 2)
				r.needOnePass()
			}}.check(t)
		})
	}
}

// K1, K2, K3: the dispatcher dies around the write that grants leases. No worker knew a lease that is not in the
// journal.
func TestK1K2K3TheGrantOfALeaseHappensOnce(t *testing.T) {
	for name, at := range points {
		t.Run(name, func(t *testing.T) {
			scenario{options: options{workers: 3, slots: 2}, during: func(r *run) { r.crash(at, grantsLease) }}.check(t)
		})
	}
}

// K4: a connection is cut before a sent response arrives: the response to an opening at the trainer, or a granted
// lease at the worker.
func TestK4ALostResponseIsSentAgain(t *testing.T) {
	t.Run("to the trainer", func(t *testing.T) {
		scenario{epochs: 1, before: func(r *run) { r.net.CutAfter(dispatcherIP, trainerIP(0), 20) }, during: func(r *run) {
			r.tr.after(1)
			r.need(simnet.Cut)
			r.needOnePass()
		}}.check(t)
	})
	t.Run("to the worker", func(t *testing.T) {
		scenario{before: func(r *run) { r.net.CutAfter(dispatcherIP, workerIP(0), 300) }, during: func(r *run) {
			r.tr.after(1)
			r.need(simnet.Cut)
		}}.check(t)
	})
}

// joinsThrough lets a trainer join while the dispatcher dies at a record, at each of the points. The trainer
// reads a pass, and the test checks the dispatcher's status.
func joinsThrough(t *testing.T, record func(*pecanv1.Record) bool, look func(*testing.T, *pecanv1.StatusResponse)) {
	for name, at := range points {
		t.Run(name, func(t *testing.T) {
			simulate(t, options{}, func(c *cluster) {
				r := &run{cluster: c}
				joined := make(chan *trainer)
				go func() {
					joined <- c.join(0, wanted{dataset: texts, mode: pecanv1.Mode_MODE_EXACTLY_ONCE, pace: time.Millisecond})
				}()
				r.crash(at, record)
				tr := <-joined
				if err := tr.read(1); err != nil {
					t.Error(err)
				}
				c.ledger.audit(texts, exactly, 1)
				look(t, tr.status())
			})
		})
	}
}

// K5: the graph is stored and the record of its dataset is not. The trainer registers it again, and there is one
// dataset.
func TestK5ADatasetIsRegisteredOnce(t *testing.T) {
	joinsThrough(t, addsDataset, func(t *testing.T, status *pecanv1.StatusResponse) {
		if datasets := status.GetDatasets(); len(datasets) != 1 {
			t.Errorf("%d datasets are registered", len(datasets))
		}
	})
}

// K6: the dispatcher dies between the creation of a job and its first lease. The job exists once, and starts.
func TestK6AJobIsCreatedOnce(t *testing.T) {
	joinsThrough(t, createsJob, func(t *testing.T, status *pecanv1.StatusResponse) {
		if jobs := status.GetJobs(); len(jobs) != 1 {
			t.Errorf("there are %d jobs", len(jobs))
		}
	})
}

// K6: dispatcher and worker die between the record of a lease and its command. The stream starts elsewhere.
func TestK6ALeaseMovesIfItsWorkerDiesBeforeTheCommandArrives(t *testing.T) {
	scenario{options: options{workers: 2}, before: func(r *run) {
		r.net.Split(dispatcherIP, workerIP(0), true)
	}, during: func(r *run) {
		r.eventually("streams are leased", time.Minute, func() bool { return len(granted(r.journal())) > 0 })
		r.crashDispatcher(killed)
		_ = r.workers[0].end(powerCut)
		r.startDispatcher()
		r.tr.after(1)
		r.need(simnet.Loss, simnet.PowerOff)
		r.net.Split(dispatcherIP, workerIP(0), false)
		r.startWorker(0)
	}}.check(t)
}

// K10: a worker dies after its last element and before its report of the end arrives; or the dispatcher dies with
// the report.
func TestK10AnEndOfAStreamThatIsNotReported(t *testing.T) {
	t.Run("the worker dies", func(t *testing.T) {
		scenario{data: uneven, options: options{workers: 2}, pace: 10 * time.Millisecond, before: func(r *run) {
			r.net.Lose(workerIP(0), dispatcherIP, true)
		}, during: func(r *run) {
			r.tr.after(r.elements() / 2)
			r.need(simnet.Loss)
			_ = r.workers[0].end(killed)
			r.net.Lose(workerIP(0), dispatcherIP, false)
			r.startWorker(0)
			r.need(simnet.Kill)
		}}.check(t)
	})
	for name, at := range points {
		t.Run("the dispatcher dies when it records the end, "+name, func(t *testing.T) {
			scenario{during: func(r *run) { r.crash(at, endsStream) }}.check(t)
		})
		t.Run("the dispatcher dies when it records the delivery, "+name, func(t *testing.T) {
			scenario{during: func(r *run) { r.crash(at, deliversStream) }}.check(t)
		})
	}
}

// K11: a trainer of a shared job leaves while the dispatcher cannot hear it. Its job is removed once, after the
// timeouts. Another trainer's job continues.
func TestK11TheJobOfASilentTrainerIsRemovedOnce(t *testing.T) {
	scenario{options: options{workers: 2, slots: 8}, epochs: 1, data: uneven, pace: 2 * time.Second, during: func(r *run) {
		other := r.join(1, wanted{dataset: batches, mode: pecanv1.Mode_MODE_EXACTLY_ONCE, name: "team", pace: time.Millisecond})
		job := other.job.ID()
		r.net.Lose(trainerIP(1), dispatcherIP, true)
		other.stop()
		has := func() bool {
			for _, status := range r.tr.status().GetJobs() {
				if status.GetJobId() == job {
					return true
				}
			}
			return false
		}
		if !has() {
			r.t.Error("the job was removed at once, although no goodbye of its trainer had arrived")
		}
		timeouts := r.options.dispatcher().Core
		r.eventually("the job is removed", timeouts.ClientTimeout+timeouts.JobTimeout+time.Minute, func() bool { return !has() })
		r.need(simnet.Loss)
		r.net.Lose(trainerIP(1), dispatcherIP, false)
		time.Sleep(time.Minute)
		if n := count(r.journal(), removesJob); n != 1 {
			r.t.Errorf("%d jobs were removed", n)
		}
	}}.check(t)
}

// K12: everything dies where one epoch ends and the next has begun. No element appears in the other epoch.
func TestK12NoElementAppearsInTheNextEpoch(t *testing.T) {
	for _, name := range []string{"dispatcher", "workers", "all"} {
		t.Run(name, func(t *testing.T) {
			scenario{options: options{workers: 3}, data: uneven, pace: 5 * time.Millisecond, epochs: 3, during: func(r *run) {
				for turn := 1; turn < 3; turn++ {
					r.tr.after(turn*r.elements() - 5)
					if name != "workers" {
						r.crashDispatcher(killed)
					}
					if name != "dispatcher" {
						for n, w := range r.workers {
							_ = w.end(killed)
							r.startWorker(n)
						}
					}
					if name != "workers" {
						r.startDispatcher()
					}
				}
				r.need(simnet.Kill)
			}}.check(t)
		})
	}
}

// K12: the dispatcher dies at the record that closes an epoch.
func TestK12TheCloseOfAnEpoch(t *testing.T) {
	for name, at := range points {
		t.Run(name, func(t *testing.T) {
			scenario{during: func(r *run) { r.crash(at, closesEpoch) }}.check(t)
		})
	}
}

// D5, D6: the disk is full or fails while a job runs. The dispatcher stops and says so, and has announced nothing
// that is not on the disk. Workers continue with what they hold. Everything continues when the dispatcher starts
// on a working disk.
func TestD5D6ADispatcherWhoseDiskFailsStops(t *testing.T) {
	for name, why := range map[string]*error{"full": &errFull, "broken": &errBroken} {
		t.Run(name, func(t *testing.T) {
			scenario{during: func(r *run) {
				r.tr.after(3)
				r.disk.broken.Store(why)
				<-r.dispatcher.done
				if r.dispatcher.err == nil || r.disk.hits.Load() == 0 {
					r.t.Errorf("the dispatcher ended with %v after %d failed writes", r.dispatcher.err, r.disk.hits.Load())
				}
				at := r.tr.taken.Load()
				time.Sleep(time.Second)
				if r.tr.taken.Load() == at {
					r.t.Error("no element arrived while the dispatcher was away")
				}
				r.disk.broken.Store(nil)
				r.disk.crash()
				r.startDispatcher()
			}}.check(t)
		})
	}
}

// A cancelled iterator never counts as an ended one. Streams are released, workers stop and trainers leave at
// any time, and no stream is recorded with a wrong number of elements (see inspect).
func TestACancelledStreamHasNotEnded(t *testing.T) {
	simulate(t, options{workers: 2, slots: 4}, func(c *cluster) {
		tr := c.join(0, wanted{dataset: uneven, mode: pecanv1.Mode_MODE_EXACTLY_ONCE, pace: 3 * time.Millisecond, ahead: 1})
		var ended atomic.Int64
		for k := range 40 {
			if k%5 == 4 {
				if err := c.workers[k%2].end(stopped); err != nil {
					t.Error(err)
				}
				c.startWorker(k % 2)
			}
			left, err := tr.some(1+k*7%50, func() bool { return true })
			if err != nil {
				t.Error(err)
			}
			if left {
				ended.Add(1)
			}
		}
		if err := tr.read(1); err != nil {
			t.Error(err)
		}
		last := c.ledger.last()
		if err := compare(last, uneven.ids(), exactly); err != nil {
			t.Errorf("the epoch after those that were left early: %v", err)
		}
		if ended.Load() == 0 {
			t.Error("no epoch was left before its end")
		}
	})
}
