package main

import (
	"cmp"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/pflag"

	"github.com/pecan-ml/pecan/policies/autoscale"
	"github.com/pecan-ml/pecan/proto/reason"
	"github.com/pecan-ml/pecan/service/dispatcher"
	"github.com/pecan-ml/pecan/service/dispatcher/core/durable"
	"github.com/pecan-ml/pecan/service/dispatcher/core/schedule"
	"github.com/pecan-ml/pecan/service/internal/check"
	"github.com/pecan-ml/pecan/service/internal/cli"
	"github.com/pecan-ml/pecan/service/internal/clock"
	"github.com/pecan-ml/pecan/service/internal/monitor"
	"github.com/pecan-ml/pecan/service/learned"
	"github.com/pecan-ml/pecan/service/prices"
	"github.com/pecan-ml/pecan/service/store"
	"github.com/pecan-ml/pecan/service/tenants"
)

const about = `
The dispatcher of a Pecan service. Trainers register datasets and open jobs at the dispatcher. The dispatcher leases the streams of
jobs to registered workers. Workers send elements directly to trainers. One dispatcher serves many trainers and workers.

With --work-dir, all acknowledged state survives a crash or restart: start the dispatcher again with the same directory. Without it,
the state is in memory only, and trainers must start again after a restart.

When it serves, it prints one line "listening on HOST:PORT" to standard output. It logs to standard error, and stops cleanly on SIGTERM,
SIGINT or SIGHUP.`

const examples = `
  pecan-dispatcher --listen 127.0.0.1:5050 --work-dir /var/lib/pecan
  pecan-worker --dispatcher 127.0.0.1:5050
  pecanctl status --dispatcher 127.0.0.1:5050`

type options struct {
	listen, workDir, metricsListen, logLevel string
	prices, workerType, trainerType          string
	decisionsLog, tenants, learnedDir        string
	exitWithParent                           bool
	reserve, decisionsBytes                  int64
	provider                                 provider
	config                                   dispatcher.Config
	flags                                    *pflag.FlagSet
}

func newOptions() *options { return &options{config: dispatcher.DefaultConfig()} }

func (o *options) register(f *pflag.FlagSet) {
	o.flags = f
	c := &o.config.Core
	f.StringVar(&o.listen, "listen", "127.0.0.1:0", "address to serve on: HOST:PORT (port 0 picks a free one), unix:PATH or unix:@NAME")
	f.StringVar(&o.workDir, "work-dir", "", "directory for the durable state, created if its parent exists; empty: the state is in memory only")
	f.Int64Var(&o.reserve, "work-dir-reserve-bytes", 64<<20, "free bytes on the disk of --work-dir; with less, the dispatcher accepts nothing new until space is free again; 0: no check")
	f.StringSliceVar(&c.WorkerAddresses, "worker-addresses", nil, "accepted workers, each HOST:PORT (HOST: any one worker of that host); static sharding has one shard per entry; empty: any worker")
	f.Int64Var(&o.config.MaxGraphBytes, "max-graph-bytes", o.config.MaxGraphBytes, "size of the largest accepted dataset graph, in bytes")
	f.Int64Var(&o.config.MaxUploadBytes, "max-upload-bytes", o.config.MaxUploadBytes, "most bytes of dataset graphs that are received at once; the default is never below --max-graph-bytes")
	f.DurationVar(&o.config.UploadIdle, "upload-idle-timeout", o.config.UploadIdle, "time in which an upload must send its next MiB, or end")
	f.IntVar(&c.MaxJobs, "max-jobs", c.MaxJobs, "most jobs at once")
	f.IntVar(&c.MaxClients, "max-clients", c.MaxClients, "most datasets that trainers read at once")
	f.IntVar(&c.MaxDatasets, "max-datasets", c.MaxDatasets, "most registered datasets at once")
	f.IntVar(&c.MaxEpochs, "max-epochs", c.MaxEpochs, "limit of open epochs per job: each open iterator needs one")
	f.DurationVar(&c.Heartbeat, "heartbeat", c.Heartbeat, "shortest period of the workers' heartbeats; it is longer in fleets that would send more than 400 per second")
	f.DurationVar(&c.SuspectAfter, "worker-suspect-after", c.SuspectAfter, "time without a message after which a worker gets no new streams; the default is never above --worker-dead-after")
	f.DurationVar(&c.DeadAfter, "worker-dead-after", c.DeadAfter, "time without a message after which a worker's streams move to other workers")
	f.DurationVar(&c.ReturnGrace, "worker-return-grace", c.ReturnGrace, "time in which a worker must reconnect to keep its streams after its connection broke")
	f.DurationVar(&c.ClientTimeout, "client-timeout", c.ClientTimeout, "time without a message after which a trainer is removed")
	f.DurationVar(&c.JobTimeout, "job-timeout", c.JobTimeout, "time after which a named job without trainers is removed")
	f.DurationVar(&c.DatasetTimeout, "dataset-timeout", c.DatasetTimeout, "time after which a dataset without jobs is removed; 0: never")
	f.StringVar(&o.prices, "prices", "", "table of prices (YAML), for jobs that minimise cost or have a budget; empty: such jobs run at full speed with few workers")
	f.StringVar(&o.workerType, "worker-type", "", "machine of the workers in --prices: TYPE, TYPE@ZONE, TYPE:spot or TYPE@ZONE:spot; without a TYPE: the only one in the table")
	f.StringVar(&o.trainerType, "trainer-type", "", "machine, as in --worker-type, of trainers that do not name theirs")
	f.StringVar(&o.tenants, "tenants", "", "table of tenants (YAML) with their weights and quotas; jobs of other tenants are refused; empty: all tenants are equal")
	f.Int64Var(&c.CacheQuota, "cache-quota", c.CacheQuota, "most bytes of all recorded caches; those that save least per byte are evicted; 0: no bound")
	f.DurationVar(&c.CacheTTL, "cache-ttl", c.CacheTTL, "time after which a cache that no epoch has used is evicted; 0: never")
	f.StringVar((*string)(&c.CacheMode), "cache-mode", string(c.CacheMode), `what streams do at cached steps, for comparisons: "auto" reads what is stored and writes the rest, "compute" uses no cache, "put" only writes, "get" only reads`)
	f.BoolVar(&c.CacheShared, "cache-shared", c.CacheShared, "let jobs read caches that jobs of other tenants wrote")
	f.StringVar(&o.decisionsLog, "decisions-log", "", "file that gets a line of JSON for each decision on the workers of a job; empty: none")
	f.Int64Var(&o.decisionsBytes, "decisions-log-bytes", 64<<20, "most bytes of --decisions-log; then it is renamed to FILE.1, in place of an earlier one, and a new file begins; 0: no bound")
	f.StringVar(&o.learnedDir, "learned-dir", "", "directory for what was learned from jobs about datasets: profiles, orders, placements; several dispatchers of one user may share it; empty: only the state of this dispatcher has it")
	o.provider.register(f)
	f.StringVar(&o.metricsListen, "metrics-listen", "", monitor.Usage)
	f.StringVar(&o.logLevel, "log-level", "info", cli.LogLevels)
	f.BoolVar(&o.exitWithParent, "exit-with-parent", false, "stop when standard input ends or the parent process has ended")
	if err := f.MarkHidden("exit-with-parent"); err != nil {
		panic(err)
	}
}

func (o *options) validate(args []string) error {
	if len(args) > 0 {
		return fmt.Errorf("unexpected arguments %q: all options are flags (see --help)", strings.Join(args, " "))
	}
	if o.workDir == "" && o.flags.Changed("work-dir") {
		return errors.New("--work-dir is empty, perhaps because a variable is not set: give a directory, or leave the flag out to keep the state in memory only")
	}
	o.config.Version = cli.Version
	// A short --worker-dead-after shortens the times that come before it, so that they need not be given.
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
	wrong := o.provider.validate(o.flags)
	c.Fleet = o.provider.limits
	return errors.Join(wrong, check.Listen("--listen", o.listen, true), monitor.Validate(o.metricsListen), check.Bytes("--work-dir-reserve-bytes", o.reserve, 0),
		check.Bytes("--decisions-log-bytes", o.decisionsBytes, 0), o.config.Validate())
}

// openStore opens the work directory. Without one it returns a store in memory.
func (o *options) openStore(log *slog.Logger) (dispatcher.Store, func(), error) {
	if o.workDir == "" {
		log.Warn("memory only: without --work-dir a restart of the dispatcher loses datasets and jobs")
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

// newDispatcher makes the dispatcher that will listen on the address. stop stops the workers that it has started.
func (o *options) newDispatcher(kept dispatcher.Store, address string, log *slog.Logger, registry prometheus.Registerer) (d *dispatcher.Dispatcher, stop func(), err error) {
	deps := dispatcher.Deps{
		Store: kept, Graphs: dispatcher.NewGraphs(o.config), Clock: clock.System(), Rand: rand.Reader, Log: log, Metrics: registry,
	}
	if deps.Prices, deps.StoragePrice, err = o.readPrices(log); err != nil {
		return nil, nil, err
	}
	if o.config.Core.Tenants, err = o.readTenants(); err != nil {
		return nil, nil, err
	}
	if o.decisionsLog != "" {
		if deps.Decisions, err = openDecisionsLog(o.decisionsLog, o.decisionsBytes); err != nil {
			return nil, nil, fmt.Errorf("--decisions-log: %w", err)
		}
	}
	o.openLearned(&deps, log)
	if deps.Provider, err = o.provider.open(address, func() int { return d.RemoteWorkers() }, log); err != nil {
		return nil, nil, err
	}
	stop = func() {
		if deps.Provider == nil {
			return
		}
		if err := deps.Provider.Close(); err != nil {
			log.Error("closing the provider of workers failed", "error", err)
		}
	}
	d, err = dispatcher.New(o.config, deps)
	return d, stop, nameDamage(err)
}

// openLearned opens the directory of what was learned from jobs. The dispatcher needs none, so a directory that cannot be used costs
// one line of the log. It is open until the process ends.
func (o *options) openLearned(deps *dispatcher.Deps, log *slog.Logger) {
	if o.learnedDir == "" {
		return
	}
	dir, err := learned.Open(o.learnedDir, durable.CheckLearned, log)
	if err != nil {
		log.Warn("what was learned from jobs is not kept (--learned-dir)", "directory", o.learnedDir, "error", err)
		return
	}
	deps.Learned = dir
}

// readPrices opens the table of prices, which also has the price of storage. Without one it returns nil.
func (o *options) readPrices(log *slog.Logger) (of func(trainerType string) (autoscale.Prices, string, error), storage func() float64, err error) {
	if o.prices == "" {
		return nil, nil, nil
	}
	file, err := prices.Open(o.prices, log)
	if err != nil {
		return nil, nil, fmt.Errorf("--prices: %w", err)
	}
	of = func(trainerType string) (autoscale.Prices, string, error) {
		return file.Of(cmp.Or(trainerType, o.trainerType), o.workerType)
	}
	// A wrong type of the flags is found at the start, and not with the first job.
	if _, _, err := of(""); err != nil && (o.workerType != "" || o.trainerType != "") {
		return nil, nil, fmt.Errorf("--prices %s: %w", o.prices, err)
	}
	return of, file.Storage, nil
}

// readTenants reads the table of tenants. Without one it returns nil.
func (o *options) readTenants() (map[string]schedule.Tenant, error) {
	if o.tenants == "" {
		return nil, nil
	}
	text, err := os.ReadFile(o.tenants)
	if err != nil {
		return nil, fmt.Errorf("--tenants: %w", err)
	}
	table, err := tenants.Parse(text)
	if err != nil {
		return nil, fmt.Errorf("--tenants %s: %w", o.tenants, err)
	}
	return table, nil
}

// nameDamage adds the reason code to errors about a damaged store, so that scripts can recognise them.
func nameDamage(err error) error {
	if errors.Is(err, store.ErrDamaged) {
		return fmt.Errorf("%s: %w", reason.StoreCorrupt, err)
	}
	return err
}
