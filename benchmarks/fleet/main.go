package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"runtime/debug"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"
)

type options struct {
	dispatcher, dataset                 string
	workers, slots, jobs, streams, kill int
	work, timeout                       time.Duration
}

// report has the figures of a run. Seconds are wall time unless their name says CPU.
type report struct {
	// From CreateJob to the first update of the epoch, the longest of all jobs.
	OpenS float64 `json:"open_s"`
	// From the first CreateJob until every slot has been taken once, or all streams were leased.
	BusyS float64 `json:"busy_s"`
	// The longest time from OpenEpoch until the first stream of a job ran.
	FirstStreamS float64 `json:"first_stream_s"`
	// From the first CreateJob until the last epoch was complete.
	TotalS float64 `json:"total_s"`
	// Work of all streams, divided by the slots and by the time until only fewer streams than slots were left.
	Utilisation float64 `json:"utilisation"`
	Streams     int     `json:"streams"`
	// Streams that ran on workers when these disappeared.
	Lost int `json:"lost"`
	// The longest time from the death of a worker until all of its streams ran on others. 0 without deaths. MovedFreeS is
	// the longest part of that time in which a slot of a living worker was free.
	MovedS             float64 `json:"moved_s"`
	MovedFreeS         float64 `json:"moved_free_s"`
	LargestToWorker    int     `json:"largest_message_to_worker"`
	LargestFromWorker  int     `json:"largest_message_from_worker"`
	LargestToTrainer   int     `json:"largest_message_to_trainer"`
	LargestFromTrainer int     `json:"largest_message_from_trainer"`
	// From the first CreateJob on, of this process.
	FleetCPUS float64 `json:"fleet_cpu_s"`
}

func main() {
	o := options{}
	flag.StringVar(&o.dispatcher, "dispatcher", "", "address of the dispatcher")
	flag.StringVar(&o.dataset, "dataset", "", "id of a registered dataset")
	flag.IntVar(&o.workers, "workers", 1000, "number of workers")
	flag.IntVar(&o.slots, "slots", 8, "streams that a worker runs at once")
	flag.IntVar(&o.jobs, "jobs", 1, "number of jobs, each with its own trainer")
	flag.IntVar(&o.streams, "streams", 65536, "streams of each job")
	flag.IntVar(&o.kill, "kill", 0, "workers that disappear without a goodbye while they run streams, after a third of all streams")
	flag.DurationVar(&o.work, "work", 2*time.Second, "how long a stream runs")
	flag.DurationVar(&o.timeout, "timeout", 10*time.Minute, "limit of the whole run")
	flag.Parse()
	// Collections of garbage would be a tenth of the CPU of this program, and nobody measures its memory.
	debug.SetGCPercent(400)
	ctx, cancel := context.WithTimeout(context.Background(), o.timeout)
	defer cancel()
	found, err := run(ctx, o)
	if err != nil {
		fmt.Fprintln(os.Stderr, "fleet:", err)
		os.Exit(1)
	}
	if err := json.NewEncoder(os.Stdout).Encode(found); err != nil {
		fmt.Fprintln(os.Stderr, "fleet:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, o options) (*report, error) {
	if o.dispatcher == "" || o.dataset == "" {
		return nil, errors.New("--dispatcher and --dataset are required")
	}
	running, stop := context.WithCancel(ctx)
	defer stop()
	f := &fleet{options: o, leased: map[streamKey]*lease{}, first: map[string]time.Time{}, over: make(chan struct{}), deaths: make(chan struct{})}
	workers, err := f.startWorkers(running)
	if err != nil {
		return nil, err
	}
	fmt.Println("ready")
	f.began, f.cpuBefore = time.Now(), cpuSeconds()
	trainers, trainersCtx := errgroup.WithContext(ctx)
	for number := range o.jobs {
		trainers.Go(func() error { return f.train(trainersCtx, number) })
	}
	err = trainers.Wait()
	f.total = time.Since(f.began)
	close(f.over)
	stop()
	workers.Wait()
	if err != nil {
		return nil, err
	}
	found := f.report()
	if o.kill > 0 && found.Lost == 0 {
		return nil, errors.New("no stream was lost: no worker that disappeared was running one")
	}
	return found, nil
}

// startWorkers starts all workers, and returns when each of them is registered.
func (f *fleet) startWorkers(ctx context.Context) (*sync.WaitGroup, error) {
	running := new(sync.WaitGroup)
	registered, registeredCtx := errgroup.WithContext(ctx)
	registered.SetLimit(64)
	for number := range f.options.workers {
		registered.Go(func() error {
			w, err := f.connect(ctx, registeredCtx, number)
			if err != nil {
				return fmt.Errorf("worker %d: %w", number, err)
			}
			running.Go(w.run)
			return nil
		})
	}
	return running, registered.Wait()
}

func cpuSeconds() float64 {
	var usage syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &usage) != nil {
		return 0
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano()).Seconds()
}
