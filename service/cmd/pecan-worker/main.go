package main

// #cgo LDFLAGS: -Wl,-rpath,$ORIGIN/../../tensorflow
import "C"

import (
	"context"
	"os"

	"github.com/pecan-ml/pecan/native/tf"
	"github.com/pecan-ml/pecan/service/internal/cli"
	"github.com/pecan-ml/pecan/service/worker"
)

func main() {
	o := new(options)
	cli.Main(cli.Command{
		Name: "pecan-worker", Usage: "--dispatcher HOST:PORT [flags]", About: about, Examples: examples, Flags: o.register, Serves: true, Drain: &o.config.DrainTimeout,
		Run: func(ctx context.Context, args []string) error { return run(ctx, o, args) },
	})
}

func run(ctx context.Context, o *options, args []string) (err error) {
	if err := o.validate(args); err != nil {
		return err
	}
	if o.config.Log, err = cli.SetupLog(cli.Stderr, o.logLevel); err != nil {
		return err
	}
	if o.exitWithParent {
		var stop context.CancelFunc
		ctx, stop = cli.WatchParent(ctx, os.Stdin)
		defer stop()
	}
	o.config.Ready = func(address string) {
		if err := cli.Announce(os.Stdout, address); err != nil {
			o.config.Log.Error("the address cannot be announced", "error", err)
		}
	}
	o.config.OnCrash = tf.OnCrash
	return worker.Run(ctx, o.config)
}
