package main

import (
	"fmt"
	"os"
	"strings"

	"github.com/spf13/pflag"

	"github.com/pecan-ml/pecan/service/internal/cli"
	"github.com/pecan-ml/pecan/service/internal/monitor"
	"github.com/pecan-ml/pecan/service/worker"
)

const about = `
A worker of a Pecan service. It registers with the dispatcher, and runs the streams that the dispatcher leases to it.
TensorFlow computes the streams, on CPU only. The worker sends elements to trainers through shared memory on the same host, and
over TCP otherwise. Start as many workers as the load needs, on any host that sees the same files as the trainer.

The worker prints one line "listening on HOST:PORT" to standard output when it is registered and serves. It logs to
standard error. On SIGTERM, SIGINT or SIGHUP it stops cleanly: its streams move to other workers at once.`

const examples = `
  pecan-worker --dispatcher 10.0.0.5:5050 --listen 0.0.0.0:0
  pecan-worker --dispatcher 10.0.0.5:5050 --listen 0.0.0.0:6060 --advertise worker-3.example:6060`

// trainerVariable is the environment variable with the id of the trainer that started this local worker. The worker serves
// this trainer. The id is no flag, because every user of the host sees the flags of a process. The id is enough to read files
// with the worker's rights.
const trainerVariable = "PECAN_TRAINER_ID"

type options struct {
	logLevel       string
	exitWithParent bool
	config         worker.Config
}

func (o *options) register(f *pflag.FlagSet) {
	c := &o.config
	f.StringVar(&c.Dispatcher, "dispatcher", "", "address of pecan-dispatcher: HOST:PORT, unix:PATH or unix:@NAME")
	f.StringVar(&c.Listen, "listen", "127.0.0.1:0", "HOST:PORT on which trainers read elements; port 0 picks a free one")
	f.StringVar(&c.Advertise, "advertise", "", "HOST:PORT by which trainers reach this worker, if it is not the one it listens on")
	f.IntVar(&c.MaxStreams, "max-streams", worker.DefaultMaxStreams(), "streams that run at once")
	f.Int64Var(&c.WindowBytes, "window-bytes", worker.DefaultWindowBytes, "ready elements that all streams together keep, in bytes")
	f.Int64Var(&c.SlotBytes, "shared-memory-bytes", worker.DefaultSlotBytes, "shared memory per trainer on this host; 0 turns it off")
	f.IntVar(&c.Threads, "threads", 0, "threads in each of TensorFlow's pools; 0: one per core")
	f.StringVar(&c.Kind, "kind", worker.KindRemote, "local (for the trainers on its host only) or remote")
	f.DurationVar(&c.DispatcherTimeout, "dispatcher-timeout", worker.DefaultDispatcherTimeout, "how long to try to reach the dispatcher when the worker starts")
	f.StringVar(&c.CheckpointDir, "checkpoint-dir", "", "directory that all workers see, for checkpoints of streams that cannot start at an index; empty: no checkpoints")
	f.DurationVar(&c.CheckpointInterval, "checkpoint-interval", worker.DefaultCheckpointInterval, "shortest time between two checkpoints of a stream")
	f.Float64Var(&c.CheckpointShare, "checkpoint-share", worker.DefaultCheckpointShare, "largest share of the worker's time that checkpoints may use: expensive ones are taken less often")
	f.DurationVar(&c.DrainTimeout, "drain-timeout", worker.DefaultDrainTimeout, "how long a stopping worker serves the elements it has produced and, in at-most-once jobs, finishes streams that cannot move")
	f.StringVar(&c.MetricsListen, "metrics-listen", "", monitor.Usage)
	f.StringVar(&c.CacheDir, "cache-dir", "", "directory for the elements of cache() steps, which all workers of the service must see; empty: these steps do nothing")
	f.Int64Var(&c.CacheBytes, "cache-bytes", 0, "largest size of all files in --cache-dir, in bytes; elements beyond it are not cached; 0: no bound")
	f.Int64Var(&c.CacheWriteRate, "cache-write-rate", 0, "most bytes that this worker writes into --cache-dir in a second; streams that write wait for it; 0: no bound")
	f.BoolVar(&c.CacheCompress, "cache-compress", false, "compress cache segments (snappy) if that makes them smaller by a quarter, also if --cache-dir is faster than the compressor")
	f.DurationVar(&c.CacheOrphanAfter, "cache-orphan-after", worker.DefaultCacheOrphanAfter, "age at which a file that belongs to no cache is removed")
	f.StringVar(&o.logLevel, "log-level", "info", cli.LogLevels)
	f.BoolVar(&o.exitWithParent, "exit-with-parent", false, "stop when standard input ends or the parent process has ended")
	f.Lookup("exit-with-parent").Hidden = true
}

func (o *options) validate(args []string) error {
	if len(args) > 0 {
		return fmt.Errorf("unexpected arguments %q: all options are flags (see --help)", strings.Join(args, " "))
	}
	o.config.Version = cli.Version
	o.config.TrainerID = os.Getenv(trainerVariable)
	return o.config.Validate()
}
