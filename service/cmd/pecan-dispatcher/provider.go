package main

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/spf13/pflag"

	"github.com/pecan-ml/pecan/service/dispatcher/core/fleet"
	"github.com/pecan-ml/pecan/service/internal/check"
	"github.com/pecan-ml/pecan/service/provision"
)

// provider has the flags about what starts and stops workers.
type provider struct {
	limits              fleet.Limits
	patience            time.Duration
	kubeconfig, program string
	args                []string
}

func (p *provider) register(f *pflag.FlagSet) {
	p.limits = fleet.Limits{Max: 8, Idle: 2 * time.Minute}
	f.StringVar(&p.limits.Provider, "workers-provider", "", provision.Usage+"; empty: the dispatcher starts no workers")
	f.IntVar(&p.limits.Min, "min-workers", 0, "fewest workers that --workers-provider keeps")
	f.IntVar(&p.limits.Max, "max-workers", p.limits.Max, "most workers that --workers-provider starts")
	f.DurationVar(&p.limits.Idle, "workers-idle-time", p.limits.Idle, "time for which fewer workers must suffice before some leave")
	f.DurationVar(&p.limits.Drain, "workers-drain-timeout", 0, "most time in which a worker that is asked to leave hands its streams over; 0: the --drain-timeout of the worker")
	f.DurationVar(&p.patience, "workers-patience", provision.DefaultPatience, "time after which a pending worker counts as unavailable")
	f.StringVar(&p.kubeconfig, "workers-kubeconfig", "", "file that describes the Kubernetes cluster of the workers; empty: the usual places, and then the cluster that this process runs in")
	f.StringVar(&p.program, "workers-program", "", "program of local workers; empty: pecan-worker in the directory of this program or in PATH")
	f.StringSliceVar(&p.args, "workers-args", nil, "further flags of local workers, as in --workers-args=--threads=1,--max-streams=2")
}

func (p *provider) validate(flags *pflag.FlagSet) (err error) {
	if p.limits.Provider == "" {
		for _, name := range []string{"min-workers", "max-workers", "workers-idle-time", "workers-drain-timeout", "workers-patience", "workers-kubeconfig", "workers-program", "workers-args"} {
			if flags.Changed(name) {
				err = errors.Join(err, fmt.Errorf("--%s has no effect without --workers-provider: say what starts workers, or leave the flag out", name))
			}
		}
		return err
	}
	p.limits.Fixed = p.limits.Provider == "static"
	return errors.Join(
		check.Duration("--workers-idle-time", p.limits.Idle, 0), check.Duration("--workers-drain-timeout", p.limits.Drain, 0), check.Duration("--workers-patience", p.patience, time.Millisecond),
	)
}

// open opens the provider; nil if nothing starts workers. registered counts the registered workers. address is the one on
// which this dispatcher listens.
func (p *provider) open(address string, registered func() int, log *slog.Logger) (provision.Provider, error) {
	if p.limits.Provider == "" {
		return nil, nil
	}
	o := provision.Options{
		Registered: registered, Dispatcher: reachable(address), WorkerProgram: p.program, MostLocal: p.limits.Max, DrainTimeout: p.limits.Drain, Kubeconfig: p.kubeconfig,
		Patience: p.patience, Log: log,
	}
	if p.limits.Drain > 0 {
		o.WorkerArgs = append(o.WorkerArgs, "--drain-timeout="+p.limits.Drain.String())
	}
	// A later flag wins.
	o.WorkerArgs = append(o.WorkerArgs, p.args...)
	var err error
	if p.limits.Provider == "local" && o.WorkerProgram == "" {
		if o.WorkerProgram, err = findWorker(); err != nil {
			return nil, err
		}
	}
	opened, err := provision.Open(p.limits.Provider, o)
	if err != nil {
		return nil, fmt.Errorf("--workers-provider: %w", err)
	}
	return opened, nil
}

// reachable returns the address by which a process on this host reaches a listener.
func reachable(address string) string {
	host, port, err := net.SplitHostPort(address)
	if ip := net.ParseIP(host); err == nil && ip != nil && ip.IsUnspecified() {
		loopback := "127.0.0.1"
		if ip.To4() == nil {
			loopback = "::1"
		}
		return net.JoinHostPort(loopback, port)
	}
	return address
}

// findWorker returns the path of pecan-worker.
func findWorker() (string, error) {
	const name = "pecan-worker"
	if own, err := os.Executable(); err == nil {
		if path := filepath.Join(filepath.Dir(own), name); executable(path) {
			return path, nil
		}
	}
	path, err := exec.LookPath(name)
	if err != nil {
		return "", errors.New("--workers-provider local: pecan-worker is neither in the directory of this program nor in PATH; name it with --workers-program")
	}
	return path, nil
}

func executable(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0
}
