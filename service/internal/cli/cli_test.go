package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/spf13/pflag"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestExecuteGivesExitCodesAndOneLine(t *testing.T) {
	cancelled, cancel := context.WithCancel(context.Background())
	cancel()
	cases := map[string]struct {
		ctx            context.Context
		args           []string
		run            func(context.Context, []string) error
		code           int
		stdout, stderr string
	}{
		"a clean run exits 0": {run: func(context.Context, []string) error { return nil }},
		"an error exits 1 with one line": {
			run: func(context.Context, []string) error {
				return errors.Join(errors.New("open store:  damaged"), nil, errors.New("close it: failed"))
			},
			code: 1, stderr: "pecan-test: open store: damaged; close it: failed\n",
		},
		"an error may have an exit code of its own": {
			run:  func(context.Context, []string) error { return fmt.Errorf("check: %w", coded{errors.New("in use")}) },
			code: 2, stderr: "pecan-test: check: in use\n",
		},
		"the context's own end is a clean stop": {
			ctx: cancelled,
			run: func(ctx context.Context, _ []string) error { return fmt.Errorf("serve: %w", ctx.Err()) },
		},
		"an unknown flag is one line that points to help": {
			args: []string{"--sped"}, code: 1, stderr: "pecan-test: unknown flag: --sped (see pecan-test --help)\n",
		},
		"help goes to stdout and shows flags": {args: []string{"--help"}, stdout: "--speed"},
		"version names the program":           {args: []string{"--version"}, stdout: "pecan-test " + Version},
		"what flags leave over reaches the program": {
			args: []string{"a", "--speed", "3", "b"},
			run: func(_ context.Context, args []string) error {
				if strings.Join(args, ",") != "a,b" {
					return fmt.Errorf("got %q", args)
				}
				return nil
			},
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			if c.ctx == nil {
				c.ctx = t.Context()
			}
			var stdout, stderr bytes.Buffer
			code := execute(c.ctx, Command{
				Name: "pecan-test", Usage: "[flags]", About: "Tests.", Run: c.run,
				Flags: func(f *pflag.FlagSet) { f.Int("speed", 1, "how fast") },
			}, c.args, &stdout, &stderr)
			if code != c.code {
				t.Errorf("exit code %d, want %d (stderr %q)", code, c.code, stderr.String())
			}
			if !strings.Contains(stdout.String(), c.stdout) {
				t.Errorf("stdout %q lacks %q", stdout.String(), c.stdout)
			}
			if stderr.String() != c.stderr {
				t.Errorf("stderr %q, want %q", stderr.String(), c.stderr)
			}
		})
	}
}

type coded struct{ error }

func (coded) ExitCode() int { return 2 }

func TestListenRefusesAPortInUse(t *testing.T) {
	first, err := Listen("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer first.Close()
	_, err = Listen(Address(first))
	if err == nil || !strings.Contains(err.Error(), "in use") || !strings.Contains(err.Error(), Address(first)) {
		t.Fatalf("second listener on %s: %v", Address(first), err)
	}
}

func TestListenOnUnixSockets(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	first, err := Listen("unix:" + path)
	if err != nil {
		t.Fatal(err)
	}
	if got := Address(first); got != "unix:"+path {
		t.Errorf("address %q", got)
	}
	if _, err := Listen("unix:" + path); err == nil {
		t.Fatal("a served socket was taken over")
	}
	// A process that is killed leaves its socket file behind.
	first.(*net.UnixListener).SetUnlinkOnClose(false)
	first.Close()
	second, err := Listen("unix:" + path)
	if err != nil {
		t.Fatalf("abandoned socket: %v", err)
	}
	second.Close()
	abstract, err := Listen("unix:@pecan-cli-test")
	if err != nil {
		t.Fatal(err)
	}
	defer abstract.Close()
	if got := Address(abstract); got != "unix:@pecan-cli-test" {
		t.Errorf("address %q", got)
	}
}

// Other users see the name of an abstract socket.
func TestOtherUsersCannotUseAnAbstractSocket(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root may become another user")
	}
	const name = "@pecan-cli-test-users"
	listener, err := Listen("unix:" + name)
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	served := make(chan struct{})
	go func() {
		defer close(served)
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			conn.Write([]byte("x"))
			conn.Close()
		}
	}()
	// answered connects with a user id, and returns whether it was answered.
	answered := func(uid uintptr) bool {
		got := make(chan bool)
		go func() {
			// The thread ends with the goroutine, because it is not unlocked.
			runtime.LockOSThread()
			if _, _, failed := syscall.RawSyscall(syscall.SYS_SETRESUID, uid, uid, uid); failed != 0 {
				t.Error(failed)
			}
			fd, err := syscall.Socket(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
			if err == nil {
				defer syscall.Close(fd)
				err = syscall.Connect(fd, &syscall.SockaddrUnix{Name: name})
			}
			if err != nil {
				t.Error(err)
			}
			n, _ := syscall.Read(fd, make([]byte, 1))
			got <- n == 1
		}()
		return <-got
	}
	if answered(65534) {
		t.Error("another user is served")
	}
	if !answered(0) {
		t.Error("root is not served")
	}
	listener.Close()
	<-served
}

func TestListenExplainsBadAddresses(t *testing.T) {
	for _, address := range []string{"", "localhost", "localhost:", "127.0.0.1:70000", "unix:", "unix:@", "http://x"} {
		if l, err := Listen(address); err == nil {
			l.Close()
			t.Errorf("listen on %q succeeded", address)
		}
	}
}

func TestWatchParentEndsWithStdin(t *testing.T) {
	r, w := io.Pipe()
	ctx, stop := watchParent(t.Context(), r, func() int { return 7 })
	defer stop()
	w.Close()
	waitGone(t, ctx)
}

func TestWatchParentEndsWithTheParent(t *testing.T) {
	r, w := io.Pipe()
	defer w.Close()
	var pid atomic.Int64
	pid.Store(7)
	ctx, stop := watchParent(t.Context(), r, func() int { return int(pid.Load()) })
	defer stop()
	pid.Store(1)
	waitGone(t, ctx)
}

func waitGone(t *testing.T, ctx context.Context) {
	t.Helper()
	select {
	case <-ctx.Done():
	case <-time.After(10 * time.Second):
		t.Fatal("still watching")
	}
	if !errors.Is(context.Cause(ctx), errParentGone) {
		t.Fatalf("cause %v", context.Cause(ctx))
	}
}

func TestSetupLogRefusesUnknownLevels(t *testing.T) {
	if _, err := SetupLog(io.Discard, "loud"); err == nil {
		t.Fatal("level loud was accepted")
	}
	var out bytes.Buffer
	log, err := SetupLog(&out, "warn")
	if err != nil {
		t.Fatal(err)
	}
	log.Info("hidden")
	log.Warn("shown", "name", "a\nb")
	if got := out.String(); strings.Contains(got, "hidden") || !strings.Contains(got, `name="a\nb"`) {
		t.Fatalf("log %q", got)
	}
}
