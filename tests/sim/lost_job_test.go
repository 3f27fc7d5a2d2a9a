package sim

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/pecan-ml/pecan/native/client"
	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
)

// The dispatcher forgets a trainer within an epoch, often several times, because it does not hear it, and removes its private job.
// The client recreates the job each time. The iteration returns each element once.
func TestAnIterationContinuesWhenItsJobIsLostAgain(t *testing.T) {
	seeds := uint64(12)
	if testing.Short() {
		seeds = 4
	}
	lost := 0
	for seed := range seeds {
		data, streams := []*dataset{uneven, batches}[seed/2%2], []int64{4, 40, 200}[seed%3]
		mode := []pecanv1.Mode{pecanv1.Mode_MODE_EXACTLY_ONCE, pecanv1.Mode_MODE_DETERMINISTIC}[seed%2]
		t.Run(fmt.Sprintf("seed %d, %s in %d streams, %v", seed, data.name, streams, mode), func(t *testing.T) {
			data := data.divided(streams)
			simulate(t, options{seed: seed, clientTimeout: 2 * time.Second}, func(c *cluster) { lost += loseJobs(c, data, mode) })
		})
	}
	if lost < int(seeds) {
		t.Errorf("%d jobs were lost in %d runs", lost, seeds)
	}
}

// loseJobs reads an epoch, and returns how many jobs were lost meanwhile.
func loseJobs(c *cluster, data *dataset, mode pecanv1.Mode) (lost int) {
	const lasts = time.Minute
	pace := lasts / time.Duration(data.elements())
	tr := c.join(0, wanted{dataset: data, mode: mode, pace: pace, ahead: 1 << 20, checksum: true})
	ctx := context.Background()
	id, _, err := tr.session.RegisterDataset(ctx, data.graph(), data.spec, "")
	if err != nil {
		c.t.Fatal(err)
	}
	job, err := tr.session.CreateRejoiningJob(ctx, client.JobSpec{DatasetID: id, Options: tr.wanted.jobOptions()}, &client.Dataset{Graph: data.graph(), Spec: data.spec})
	if err != nil {
		c.t.Fatal(err)
	}
	var losing sync.WaitGroup
	over, rng := make(chan struct{}), rand.New(rand.NewPCG(c.options.seed, 20))
	losing.Go(func() {
		for {
			select {
			case <-over:
				return
			case <-time.After(time.Duration(rng.Int64N(int64(lasts / 6)))):
			}
			c.net.Lose(trainerIP(0), dispatcherIP, true)
			time.Sleep(c.options.clientTimeout + time.Duration(rng.Int64N(int64(4*time.Second))))
			c.net.Lose(trainerIP(0), dispatcherIP, false)
		}
	})
	jobs := map[string]bool{}
	it := job.Open(client.IterOptions{MaxOutstandingBytes: tr.wanted.ahead, Timeout: patience})
	for ended := false; !ended; {
		elements, status, err := it.NextElement(200 * time.Millisecond)
		switch status {
		case client.Ready:
			c.ledger.took(tr, elements)
			elements.Release()
			jobs[job.Job().ID()] = true
			time.Sleep(pace)
		case client.End:
			ended = true
		case client.Failed, client.Broken:
			c.t.Errorf("after %d elements: %v", c.ledger.taken.Load(), err)
			ended = true
		}
	}
	close(over)
	losing.Wait()
	c.repairAll()
	if err := it.Close(); err != nil {
		c.t.Error(err)
	}
	if err := job.Close(); err != nil {
		c.t.Error(err)
	}
	c.ledger.audit(data, promiseOf(mode), 1)
	return len(jobs) - 1
}
