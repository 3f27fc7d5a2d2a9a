package main

import (
	"context"
	"os"
	"time"

	"github.com/spf13/pflag"

	"github.com/pecan-ml/pecan/service/internal/cli"
)

func main() {
	o := &options{}
	cli.Main(cli.Command{
		Name: "pecanctl", Usage: "status|jobs|workers|datasets|nodes [--dispatcher HOST:PORT] [--json], explain JOB [--dispatcher HOST:PORT] [--json], top [--once], scale NUMBER --provider NAME, profiles list|export|merge, cache list|verify|pin|unpin|rm, or store check|inspect DIR", About: about, Examples: examples,
		Flags: func(f *pflag.FlagSet) {
			f.StringVar(&o.dispatcher, "dispatcher", "127.0.0.1:5050", "address of the dispatcher: HOST:PORT, pecan://HOST:PORT, unix:PATH or unix:@NAME")
			f.BoolVar(&o.json, "json", false, "print JSON instead of tables")
			f.DurationVar(&o.timeout, "timeout", 5*time.Second, "time to wait for an answer")
			f.DurationVar(&o.interval, "interval", 2*time.Second, "top: time between two screens")
			f.BoolVar(&o.once, "once", false, "top: print one screen and exit")
			f.StringVar(&o.provider, "provider", "", "scale: what runs the workers: kubernetes:deployment/NAME or kubernetes:statefulset/NAME, with .NAMESPACE if it is another one")
			f.StringVar(&o.kubeconfig, "kubeconfig", "", "scale: file that describes the Kubernetes cluster; empty: the usual places, and then the cluster that this process runs in")
			f.DurationVar(&o.wait, "wait", 10*time.Minute, "scale: time to wait for the workers")
			f.StringVar(&o.cluster, "cluster", "", "cache rm: id of the cluster that is gone")
			f.BoolVar(&o.oldNames, "old-names", false, "cache rm DIR: remove the files whose names have no cluster, which earlier versions wrote")
			f.BoolVar(&o.force, "force", false, "cache rm DIR: remove the files even if no dispatcher answers, although the cluster may still exist")
			f.Uint64Var(&o.from, "from", 0, "store inspect: number of the first record to show")
			f.Uint64Var(&o.to, "to", 0, "store inspect: number of the last record to show; 0: the last one of the store")
			f.Uint64Var(&o.limit, "limit", 0, "store inspect: most records to show; 0: all")
		},
		Run: func(ctx context.Context, args []string) error { return run(ctx, o, args, os.Stdout) },
	})
}
