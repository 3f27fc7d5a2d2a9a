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

// Version is the version of Pecan, the same for all processes and the wheel.
const Version = "0.1.0"

// stopGrace is the time that a command may take to stop. After it the process exits with an error.
const stopGrace = 20 * time.Second

// lastWords is how long the end of the process waits for the reader of its log.
const lastWords = 2 * time.Second

// Command is one program.
type Command struct {
	// Name is the name of the program.
	Name string
	// Usage follows the name in the first line of --help.
	Usage string
	// About is the text of --help between the usage line and the flags. Examples is the text after the flags.
	About, Examples string
	// Flags registers the program's flags.
	Flags func(*pflag.FlagSet)
	// Drain, if not nil, is the time for which Run may continue its work after its context ended. stopGrace comes on top.
	Drain *time.Duration
	// Serves is set if the program continues when the reader of its standard error ends.
	Serves bool
	// Run does the work until ctx ends; args are the arguments without flags. A nil error or the error of ctx is a clean stop.
	Run func(ctx context.Context, args []string) error
}

// Main runs the command with the process's arguments and exits. The code is 0 after a clean stop. Otherwise it is 1 or the
// error's ExitCode, with one line on stderr. SIGTERM, SIGINT and SIGHUP end ctx, except SIGHUP under nohup. A second signal
// ends the process immediately.
func Main(c Command) {
	ends := []os.Signal{syscall.SIGTERM, syscall.SIGINT}
	if !signal.Ignored(syscall.SIGHUP) {
		// A closed terminal is a normal stop: a worker first hands over its streams.
		ends = append(ends, syscall.SIGHUP)
	}
	ctx, stop := signal.NotifyContext(context.Background(), ends...)
	defer stop()
	context.AfterFunc(ctx, stop)
	if c.Serves {
		// Without this, the first line of the log after the end of its reader would end the process.
		signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
		if err := unblockStderr(); err != nil {
			fmt.Fprintf(Stderr, "%s: messages of native code may wait for a reader of standard error: %v\n", c.Name, err)
		}
	}
	code := execute(ctx, c, os.Args[1:], os.Stdout, Stderr)
	Stderr.Flush(lastWords)
	os.Exit(code)
}

// execute is Main for tests: it returns the exit code.
func execute(ctx context.Context, c Command, args []string, stdout, stderr io.Writer) int {
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
		fmt.Fprintf(stdout, "%s %s\n", c.Name, longVersion())
		return 0
	}
	if err := runBounded(ctx, c, flags.Args()); err != nil {
		return fail(stderr, c, err)
	}
	return 0
}

// runBounded runs the command. It returns an error if Run has not returned stopGrace (and Drain) after its context ended.
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
			grace := stopGrace
			if c.Drain != nil {
				grace += *c.Drain
			}
			timer := time.NewTimer(grace)
			defer timer.Stop()
			expired = timer.C
		case <-expired:
			return fmt.Errorf("the program has not stopped %v after the signal; exiting anyway", stopGrace)
		}
	}
}

func fail(stderr io.Writer, c Command, err error) int {
	fmt.Fprintf(stderr, "%s: %s\n", c.Name, oneLine(err.Error()))
	var coded interface{ ExitCode() int }
	if errors.As(err, &coded) {
		return coded.ExitCode()
	}
	return 1
}

// oneLine puts semicolons between lines. errors.Join writes a line for each error.
func oneLine(text string) string {
	var lines []string
	for line := range strings.Lines(text) {
		if words := strings.Fields(line); len(words) > 0 {
			lines = append(lines, strings.Join(words, " "))
		}
	}
	return strings.Join(lines, "; ")
}

func help(c Command, flags *pflag.FlagSet) string {
	var b strings.Builder
	fmt.Fprintf(&b, "Usage: %s %s\n\n%s\n\nFlags:\n%s", c.Name, c.Usage, strings.TrimSpace(c.About), flags.FlagUsagesWrapped(100))
	if c.Examples != "" {
		fmt.Fprintf(&b, "\nExamples:\n%s\n", strings.Trim(c.Examples, "\n"))
	}
	return b.String()
}

// longVersion returns the version with the commit of the build, if the build recorded it.
func longVersion() string {
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
