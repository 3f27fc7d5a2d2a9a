// Command pecanctl shows what a Pecan service is doing, and what its dispatcher keeps on disk.
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
		Name: "pecanctl", Usage: "status|jobs|workers|datasets|nodes|explain JOB [--dispatcher HOST:PORT] [--json], or store check|inspect DIR", About: about, Examples: examples,
		Flags: func(f *pflag.FlagSet) {
			f.StringVar(&o.dispatcher, "dispatcher", "127.0.0.1:5050", "where the dispatcher listens: HOST:PORT, pecan://HOST:PORT, unix:PATH or unix:@NAME")
			f.BoolVar(&o.json, "json", false, "print JSON for programs instead of tables for people")
			f.DurationVar(&o.timeout, "timeout", 5*time.Second, "how long to wait for an answer")
			f.Uint64Var(&o.from, "from", 0, "store inspect: the first record to show")
			f.Uint64Var(&o.to, "to", 0, "store inspect: the last record to show; 0: the last there is")
			f.Uint64Var(&o.limit, "limit", 0, "store inspect: how many records to show at most; 0: all")
		},
		Run: func(ctx context.Context, args []string) error { return run(ctx, o, args, os.Stdout) },
	})
}
