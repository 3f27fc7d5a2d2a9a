package main

import (
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/pflag"
	"go.uber.org/multierr"

	"github.com/pecan-ml/pecan/proto/reason"
	"github.com/pecan-ml/pecan/service/dispatcher"
	"github.com/pecan-ml/pecan/service/internal/check"
	"github.com/pecan-ml/pecan/service/internal/cli"
	"github.com/pecan-ml/pecan/service/internal/clock"
	"github.com/pecan-ml/pecan/service/internal/monitor"
	"github.com/pecan-ml/pecan/service/store"
)

const about = `
The dispatcher of a Pecan service. Trainers register datasets and open jobs here; workers register here and are told which
parts of a job to run. Elements themselves go from workers to trainers directly. One dispatcher serves many trainers and workers.

With --work-dir everything that was acknowledged survives a crash or restart of the dispatcher: start it again with the same
directory. Without it the state is in memory only, and trainers have to begin anew after a restart.

It prints one line "listening on HOST:PORT" to standard output when it serves, logs to standard error, and stops cleanly on
SIGTERM, SIGINT or SIGHUP.`

const examples = `
  pecan-dispatcher --listen 127.0.0.1:5050 --work-dir /var/lib/pecan
  pecan-worker --dispatcher 127.0.0.1:5050
  pecanctl status --dispatcher 127.0.0.1:5050`

type options struct {
	listen, workDir, metricsListen, logLevel string
	exitWithParent                           bool
	reserve                                  int64
	config                                   dispatcher.Config
	flags                                    *pflag.FlagSet
}

func newOptions() *options { return &options{config: dispatcher.DefaultConfig()} }

func (o *options) register(f *pflag.FlagSet) {
	o.flags = f
	c := &o.config.Core
	f.StringVar(&o.listen, "listen", "127.0.0.1:0", "address to serve on: HOST:PORT (port 0 picks a free one), unix:PATH or unix:@NAME")
	f.StringVar(&o.workDir, "work-dir", "", "directory for the durable state, created if its parent exists; without it: memory only")
	f.Int64Var(&o.reserve, "work-dir-reserve-bytes", 64<<20, "free bytes on the disk of --work-dir below which nothing new is begun, until there is room again; 0: no matter")
	f.StringSliceVar(&c.WorkerAddresses, "worker-addresses", nil, "the only workers accepted, HOST:PORT each (HOST: any one worker there); their places are the shards of static sharding")
	f.Int64Var(&o.config.MaxGraphBytes, "max-graph-bytes", o.config.MaxGraphBytes, "largest dataset graph taken, in bytes")
	f.Int64Var(&o.config.MaxUploadBytes, "max-upload-bytes", o.config.MaxUploadBytes, "dataset graphs received at once, in bytes (more when --max-graph-bytes is)")
	f.DurationVar(&o.config.UploadIdle, "upload-idle-timeout", o.config.UploadIdle, "time in which an upload has to bring its next MiB, or to end")
	f.IntVar(&c.MaxJobs, "max-jobs", c.MaxJobs, "jobs at once")
	f.IntVar(&c.MaxClients, "max-clients", c.MaxClients, "datasets that trainers read at once")
	f.IntVar(&c.MaxDatasets, "max-datasets", c.MaxDatasets, "registered datasets at once")
	f.IntVar(&c.MaxEpochs, "max-epochs", c.MaxEpochs, "epochs of one job at once: the iterators that a trainer has open over a dataset")
	f.DurationVar(&c.Heartbeat, "heartbeat", c.Heartbeat, "period of the workers' heartbeats")
	f.DurationVar(&c.SuspectAfter, "worker-suspect-after", c.SuspectAfter, "silence after which a worker gets no new streams (shorter when --worker-dead-after is)")
	f.DurationVar(&c.DeadAfter, "worker-dead-after", c.DeadAfter, "silence after which a worker's streams move to others")
	f.DurationVar(&c.ReturnGrace, "worker-return-grace", c.ReturnGrace, "time a worker whose connection broke has to come back and keep its streams")
	f.DurationVar(&c.ClientTimeout, "client-timeout", c.ClientTimeout, "silence after which a trainer is forgotten")
	f.DurationVar(&c.JobTimeout, "job-timeout", c.JobTimeout, "time after which a named job without trainers is forgotten")
	f.DurationVar(&c.DatasetTimeout, "dataset-timeout", c.DatasetTimeout, "time after which a dataset without jobs is forgotten; 0: never")
	f.StringVar(&o.metricsListen, "metrics-listen", "", monitor.Usage)
	f.StringVar(&o.logLevel, "log-level", "info", cli.LogLevels)
	f.BoolVar(&o.exitWithParent, "exit-with-parent", false, "stop when standard input ends or the parent process is gone")
	if err := f.MarkHidden("exit-with-parent"); err != nil {
		panic(err)
	}
}

func (o *options) validate(args []string) error {
	if len(args) > 0 {
		return fmt.Errorf("unexpected arguments %q; everything is given by flags (see --help)", strings.Join(args, " "))
	}
	if o.workDir == "" && o.flags.Changed("work-dir") {
		return errors.New("--work-dir is given and empty, as of a variable that is not set: give a directory, or leave the flag out to keep everything in memory only")
	}
	o.config.Version = cli.Version
	// Who asks for a quick detection need not spell out the times before it.
	c := &o.config.Core
	if !o.flags.Changed("worker-suspect-after") {
		c.SuspectAfter = min(c.SuspectAfter, c.DeadAfter)
	}
	if !o.flags.Changed("heartbeat") {
		c.Heartbeat = min(c.Heartbeat, max(c.SuspectAfter/3, 1))
	}
	if !o.flags.Changed("max-upload-bytes") {
		o.config.MaxUploadBytes = max(o.config.MaxUploadBytes, o.config.MaxGraphBytes)
	}
	return multierr.Combine(check.Listen("--listen", o.listen, true), monitor.Validate(o.metricsListen), check.Bytes("--work-dir-reserve-bytes", o.reserve, 0), o.config.Validate())
}

// openStore opens the work directory, or memory when there is none.
func (o *options) openStore(log *slog.Logger) (dispatcher.Store, func(), error) {
	if o.workDir == "" {
		log.Warn("memory only: no --work-dir was given, so a restart of the dispatcher forgets datasets and jobs")
		return store.NewMemory(), func() {}, nil
	}
	s, err := store.Open(store.Options{Dir: o.workDir, Log: log, Reserve: o.reserve})
	if err != nil {
		return nil, nil, nameDamage(err)
	}
	return s, func() {
		if err := s.Close(); err != nil {
			log.Error("closing the store failed", "error", err)
		}
	}, nil
}

func (o *options) newDispatcher(kept dispatcher.Store, log *slog.Logger, registry prometheus.Registerer) (*dispatcher.Dispatcher, error) {
	d, err := dispatcher.New(o.config, dispatcher.Deps{
		Store: kept, Graphs: dispatcher.NewGraphs(o.config), Clock: clock.System(), Rand: rand.Reader, Log: log, Metrics: registry,
	})
	return d, nameDamage(err)
}

// nameDamage puts the reason before what is wrong with a store, so that whoever starts dispatchers can tell it.
func nameDamage(err error) error {
	if errors.Is(err, store.ErrDamaged) {
		return fmt.Errorf("%s: %w", reason.StoreCorrupt, err)
	}
	return err
}
