// Package cli holds what every command of Pecan does in the same way: flags and --help, signals, the one line that says
// where it listens, logging, and ending together with the process that started it.
package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime/debug"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/pflag"
)

// Version of Pecan, the same for all its processes and for the wheel.
const Version = "0.1.0"

// StopGrace is how long a command may take to end after it was told to; then the process exits with an error.
const StopGrace = 20 * time.Second

// Command is one program.
type Command struct {
	// Name as it is typed.
	Name string
	// Usage is what follows the name in the first line of --help.
	Usage string
	// About is shown by --help between the usage line and the flags, Examples after the flags.
	About, Examples string
	// Flags registers the program's flags.
	Flags func(*pflag.FlagSet)
	// Run does the work until ctx ends; args are what the flags left over. A nil error, or ctx's own, is a clean stop.
	// Drain, if not nil, is how long Run may go on with its work after its context ended, beside what it takes to stop.
	Drain *time.Duration
	Run   func(ctx context.Context, args []string) error
}

// Main runs the command with the process's arguments and exits: 0 after a clean stop, 1 with one line on stderr
// otherwise, or what the error's ExitCode gives. SIGTERM, SIGINT and SIGHUP end ctx, the last one unless nohup keeps it away; a second signal ends the process
// at once.
func Main(c Command) {
	ends := []os.Signal{syscall.SIGTERM, syscall.SIGINT}
	if !signal.Ignored(syscall.SIGHUP) {
		// A closed terminal is a stop like any other: a worker hands its streams over before it goes.
		ends = append(ends, syscall.SIGHUP)
	}
	ctx, stop := signal.NotifyContext(context.Background(), ends...)
	defer stop()
	context.AfterFunc(ctx, stop)
	os.Exit(Execute(ctx, c, os.Args[1:], os.Stdout, os.Stderr))
}

// Execute is Main without the process: it gives the exit code.
func Execute(ctx context.Context, c Command, args []string, stdout, stderr io.Writer) int {
	flags := pflag.NewFlagSet(c.Name, pflag.ContinueOnError)
	flags.SetOutput(io.Discard)
	flags.SortFlags = false
	if c.Flags != nil {
		c.Flags(flags)
	}
	version := flags.Bool("version", false, "print the version and exit")
	switch err := flags.Parse(args); {
	case errors.Is(err, pflag.ErrHelp):
		fmt.Fprint(stdout, help(c, flags))
		return 0
	case err != nil:
		return fail(stderr, c, fmt.Errorf("%w (see %s --help)", err, c.Name))
	}
	if *version {
		fmt.Fprintf(stdout, "%s %s\n", c.Name, LongVersion())
		return 0
	}
	if err := runBounded(ctx, c, flags.Args()); err != nil {
		return fail(stderr, c, err)
	}
	return 0
}

// runBounded gives up on a Run that does not return StopGrace after its context ended.
func runBounded(ctx context.Context, c Command, args []string) error {
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx, args) }()
	var expired <-chan time.Time
	stopping := ctx.Done()
	for {
		select {
		case err := <-done:
			if errors.Is(err, context.Canceled) && ctx.Err() != nil {
				return nil
			}
			return err
		case <-stopping:
			stopping = nil
			grace := StopGrace
			if c.Drain != nil {
				grace += *c.Drain
			}
			timer := time.NewTimer(grace)
			defer timer.Stop()
			expired = timer.C
		case <-expired:
			return fmt.Errorf("still not stopped %v after the signal, exiting anyway", StopGrace)
		}
	}
}

func fail(stderr io.Writer, c Command, err error) int {
	line := strings.Join(strings.Fields(err.Error()), " ")
	fmt.Fprintf(stderr, "%s: %s\n", c.Name, line)
	var coded interface{ ExitCode() int }
	if errors.As(err, &coded) {
		return coded.ExitCode()
	}
	return 1
}

func help(c Command, flags *pflag.FlagSet) string {
	var b strings.Builder
	fmt.Fprintf(&b, "Usage: %s %s\n\n%s\n\nFlags:\n%s", c.Name, c.Usage, strings.TrimSpace(c.About), flags.FlagUsagesWrapped(100))
	if c.Examples != "" {
		fmt.Fprintf(&b, "\nExamples:\n%s\n", strings.Trim(c.Examples, "\n"))
	}
	return b.String()
}

// LongVersion is the version with the commit it was built from, where that is known.
func LongVersion() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return Version
	}
	for _, setting := range info.Settings {
		if setting.Key == "vcs.revision" && len(setting.Value) >= 12 {
			return fmt.Sprintf("%s (%s, %s)", Version, setting.Value[:12], info.GoVersion)
		}
	}
	return fmt.Sprintf("%s (%s)", Version, info.GoVersion)
}
