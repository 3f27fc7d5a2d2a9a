package client

import (
	"context"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/pecan-ml/pecan/native/buffer"
	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
)

// A trainer reads 960 streams from 320 workers within one budget. Slow workers, stalled ones, and dead ones whose streams
// move, cost their own streams only. Tokens stay small.
func TestManyWorkersShareOneBudget(t *testing.T) {
	const (
		fast, slow, stalled, dead = 270, 20, 10, 20
		perWorker, count          = 3, 4
		group                     = 16
		// stalledAt is the element at which stalled workers stop.
		stalledAt = 2
		pad       = 16 << 10
		budget    = 1 << 20
		streams   = (fast + slow + stalled + dead) * perWorker
	)
	for name, deterministic := range map[string]bool{"in any order": false, "in groups": true} {
		t.Run(name, func(t *testing.T) {
			// Slow workers send nothing, and stalled ones nothing more, until the elements of the others were read.
			hold := make(chan struct{})
			var once sync.Once
			release := func() { once.Do(func() { close(hold) }) }
			t.Cleanup(release)
			start := func(n int, s testStream) (workers []*testWorker) {
				for range n {
					workers = append(workers, startWorker(t, same(s)))
				}
				return workers
			}
			// The dead workers have the first streams, and the held ones the last.
			element := testStream{count: count, pad: pad}
			workers := start(dead+fast, element)
			element.hold = hold
			workers = append(workers, start(slow, element)...)
			element.holdAt = stalledAt
			workers = append(workers, start(stalled, element)...)
			d := startDispatcher(t, func(d *testDispatcher) { d.plan.NumStreams, d.plan.Group = streams, group })
			d.updateOf = func(uint64) *pecanv1.EpochUpdate {
				moved := map[uint32]bool{}
				for _, report := range d.reported {
					moved[report.GetId().GetStream()] = true
				}
				u := &pecanv1.EpochUpdate{TotalStreams: streams, StreamsFinal: true}
				for stream := range uint32(streams) {
					at := int(stream) / perWorker
					one := &pecanv1.ConsumerStream{Stream: stream, Lease: 1, Assignment: 1, WorkerNumber: numberOf(workers[at].address())}
					switch {
					case at >= dead:
					case moved[stream]:
						one.Lease = 2
					default:
						one.WorkerNumber = numberOf(&pecanv1.WorkerAddress{WorkerId: "dead", Tcp: "127.0.0.1:1"})
					}
					u.Streams = append(u.Streams, one)
				}
				return u
			}
			var pool *buffer.Pool
			job, err := open(t, d, func(c *Config) { pool = c.Pool }).session.CreateRejoiningJob(context.Background(), JobSpec{DatasetID: "f1"}, nil)
			if err != nil {
				t.Fatal(err)
			}
			it := job.Open(IterOptions{MaxOutstandingBytes: budget, Deterministic: deterministic, NoPrefetch: true})
			done, largest := make(chan struct{}), int64(0)
			var watching sync.WaitGroup
			watching.Go(func() {
				for heartbeat := 0; ; heartbeat++ {
					select {
					case <-done:
						return
					case <-time.After(time.Millisecond):
					}
					largest = max(largest, pool.Stats().Bytes)
					if heartbeat%50 == 0 {
						d.update(func() {})
					}
				}
			})
			token := 0
			measure := func(steps int) {
				text, err := job.Save(0, uint64(steps), false)
				if err != nil {
					t.Fatal(err)
				}
				token = max(token, len(text))
			}
			free := (fast+dead)*perWorker*count + stalled*perWorker*stalledAt
			if deterministic {
				free = (fast + dead) * perWorker / group * group * count
			}
			rng := rand.New(rand.NewPCG(5, 6))
			var steps []seen
			for ended := false; !ended; {
				var more []seen
				limit := 500
				if left := free - len(steps); left > 0 {
					limit = min(limit, left)
				}
				more, ended = readSteps(t, it, rng, limit)
				steps = append(steps, more...)
				measure(len(steps))
				if len(steps) == free {
					release()
				}
			}
			close(done)
			watching.Wait()
			next := make([]uint64, streams)
			for i, step := range steps {
				if step.failed || step.index != next[step.stream] {
					t.Fatalf("step %d is %+v, element %d was next", i, step, next[step.stream])
				}
				next[step.stream]++
				if first, of := uint32(i)/(group*count)*group, uint32(i)%group; deterministic && step.stream != first+of {
					t.Fatalf("element %d comes from stream %d", i, step.stream)
				}
			}
			if len(steps) != streams*count {
				t.Errorf("%d elements", len(steps))
			}
			// Besides the budget, the loop holds an element. Streams in turn get a frame each even if others hold the budget.
			frames, limit := int64(1), 64<<10
			if deterministic {
				frames, limit = frames+group, 1<<10
			}
			if most := budget + frames*(pad+64); largest > most {
				t.Errorf("%d bytes were queued, the budget is %d", largest, budget)
			}
			if token > limit {
				t.Errorf("a token has %d bytes", token)
			}
			announced, accepted := int64(0), int64(0)
			for _, w := range workers {
				announced += w.announced.Load()
				accepted += w.accepted.Load()
			}
			if announced == 0 {
				t.Error("no worker had to wait for the budget")
			}
			// The system may drop a connection that is being made.
			if most := int64(len(workers)) * 11 / 10; accepted > most {
				t.Errorf("%d connections", accepted)
			}
			t.Logf("at most %d bytes in use and %d in a token, %d frames were announced", largest, token, announced)
			eventually(t, "all ends are reported", func() bool { return look(d, func() bool { return len(d.finished) >= streams }) })
		})
	}
}
