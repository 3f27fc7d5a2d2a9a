package main

import (
	"context"
	"os"

	"github.com/pecan-ml/pecan/service/internal/cli"
	"github.com/pecan-ml/pecan/service/internal/monitor"
)

func main() {
	o := newOptions()
	cli.Main(cli.Command{
		Name: "pecan-dispatcher", Usage: "[flags]", About: about, Examples: examples, Flags: o.register, Serves: true,
		Run: func(ctx context.Context, args []string) error { return run(ctx, o, args) },
	})
}

func run(ctx context.Context, o *options, args []string) error {
	if err := o.validate(args); err != nil {
		return err
	}
	log, err := cli.SetupLog(cli.Stderr, o.logLevel)
	if err != nil {
		return err
	}
	if o.exitWithParent {
		var stop context.CancelFunc
		ctx, stop = cli.WatchParent(ctx, os.Stdin)
		defer stop()
	}
	kept, closeStore, err := o.openStore(log)
	if err != nil {
		return err
	}
	defer closeStore()
	listener, err := cli.Listen(o.listen)
	if err != nil {
		return err
	}
	defer listener.Close()
	registry := monitor.New()
	d, stopWorkers, err := o.newDispatcher(kept, cli.Address(listener), log, registry)
	if err != nil {
		return err
	}
	defer stopWorkers()
	stopMetrics, err := monitor.Start(o.metricsListen, registry, d.Ready, log)
	if err != nil {
		return err
	}
	defer stopMetrics()
	if err := cli.Announce(os.Stdout, cli.Address(listener)); err != nil {
		return err
	}
	return d.Serve(ctx, listener)
}
