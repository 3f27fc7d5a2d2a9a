// Command pecanctl shows what a Pecan service is doing.
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
		Name: "pecanctl", Usage: "status|jobs|workers|datasets|nodes [--dispatcher HOST:PORT] [--json]", About: about, Examples: examples,
		Flags: func(f *pflag.FlagSet) {
			f.StringVar(&o.dispatcher, "dispatcher", "127.0.0.1:5050", "where the dispatcher listens: HOST:PORT, pecan://HOST:PORT, unix:PATH or unix:@NAME")
			f.BoolVar(&o.json, "json", false, "print JSON for programs instead of tables for people")
			f.DurationVar(&o.timeout, "timeout", 5*time.Second, "how long to wait for an answer")
		},
		Run: func(ctx context.Context, args []string) error { return run(ctx, o, args, os.Stdout) },
	})
}
