// Command pecan-dispatcher serves datasets, jobs and leases to trainers and workers.
package main

import (
	"context"
	"crypto/rand"
	"os"

	"github.com/pecan-ml/pecan/service/dispatcher"
	"github.com/pecan-ml/pecan/service/internal/cli"
	"github.com/pecan-ml/pecan/service/internal/clock"
)

func main() {
	o := newOptions()
	cli.Main(cli.Command{
		Name: "pecan-dispatcher", Usage: "[flags]", About: about, Examples: examples, Flags: o.register,
		Run: func(ctx context.Context, args []string) error { return run(ctx, o, args) },
	})
}

func run(ctx context.Context, o *options, args []string) error {
	if err := o.validate(args); err != nil {
		return err
	}
	log, err := cli.SetupLog(os.Stderr, o.logLevel)
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
	d, err := dispatcher.New(o.config, dispatcher.Deps{
		Store: kept, Graphs: dispatcher.NewGraphs(o.config), Clock: clock.System(), Rand: rand.Reader, Log: log,
	})
	if err != nil {
		return nameDamage(err)
	}
	if err := cli.Announce(os.Stdout, cli.Address(listener)); err != nil {
		return err
	}
	return d.Serve(ctx, listener)
}
