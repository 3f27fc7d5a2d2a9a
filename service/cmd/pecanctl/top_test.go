package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/encoding/protojson"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
)

func recordedStatus(t *testing.T) *pecanv1.StatusResponse {
	t.Helper()
	data, err := os.ReadFile("testdata/top.json")
	if err != nil {
		t.Fatal(err)
	}
	s := &pecanv1.StatusResponse{}
	if err := protojson.Unmarshal(data, s); err != nil {
		t.Fatal(err)
	}
	return s
}

func TestTopOutputMatchesGoldenFiles(t *testing.T) {
	for _, c := range []struct {
		width, height int
		problem       string
	}{{120, 0, ""}, {120, 24, "no answer for 4s, trying again: connection refused"}, {60, 10, ""}, {30, 5, ""}} {
		lines := screenLines(recordedStatus(t), c.problem, c.width, c.height)
		file := filepath.Join("testdata", fmt.Sprintf("top.%dx%d.txt", c.width, c.height))
		text := strings.Join(lines, "\n") + "\n"
		if *rewrite {
			if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if text != string(want) {
			t.Errorf("%s: the output differs (run with -rewrite and read the difference):\n%s", file, text)
		}
		if c.height > 0 && len(lines) > c.height {
			t.Errorf("%s: %d lines", file, len(lines))
		}
		for _, line := range lines {
			if breadth(line) > c.width || strings.ContainsRune(line, '\x1b') {
				t.Errorf("%s: a line of %d columns: %q", file, breadth(line), line)
			}
		}
	}
}

func TestAScreenFitsEveryTerminal(t *testing.T) {
	s := recordedStatus(t)
	for height := 1; height < 20; height++ {
		for _, width := range []int{1, 2, 7, 33, 300} {
			lines := screenLines(s, "a problem", width, height)
			if len(lines) > height {
				t.Errorf("%d lines for a height of %d", len(lines), height)
			}
			for _, line := range lines {
				if breadth(line) > width {
					t.Errorf("%d columns for a width of %d: %q", breadth(line), width, line)
				}
			}
		}
	}
	for _, s := range []*pecanv1.StatusResponse{{}, {Jobs: []*pecanv1.JobStatus{{}}, Workers: []*pecanv1.WorkerStatus{{}}}} {
		if lines := screenLines(s, "", 80, 24); len(lines) < 3 {
			t.Errorf("an empty service has %d lines", len(lines))
		}
	}
}

func TestTopRefusesWrongArguments(t *testing.T) {
	address := serve(t)
	for name, c := range map[string]struct {
		o    options
		args []string
		want string
	}{
		"an argument":      {options{dispatcher: address, interval: time.Second}, []string{"train"}, "takes no arguments"},
		"JSON":             {options{dispatcher: address, interval: time.Second, json: true}, nil, "status --json"},
		"a short interval": {options{dispatcher: address, interval: time.Millisecond}, nil, "--interval 1ms: must be at least 100ms"},
		"nobody there":     {options{dispatcher: "127.0.0.1:1", interval: time.Second}, nil, "is it running"},
	} {
		c.o.timeout = time.Second
		if err := run(t.Context(), &c.o, append([]string{"top"}, c.args...), &bytes.Buffer{}); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}

func TestTopOncePrintsOneScreen(t *testing.T) {
	var out bytes.Buffer
	o := &options{dispatcher: serve(t), timeout: 10 * time.Second, interval: time.Second, once: true}
	if err := run(t.Context(), o, []string{"top"}, &out); err != nil {
		t.Fatal(err)
	}
	if text := out.String(); strings.Count(text, "cluster c-1") != 1 || !strings.Contains(text, "train") || strings.ContainsRune(text, '\x1b') {
		t.Errorf("%q", text)
	}
}

// terminal opens a pseudo-terminal of a size. said returns what was written to it so far.
func terminal(t *testing.T, rows, columns uint16) (slave *os.File, resize func(rows, columns uint16), said func() string) {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY|unix.O_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = master.Close() })
	number, err := unix.IoctlGetUint32(int(master.Fd()), unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0)
	}
	if err != nil {
		t.Fatal(err)
	}
	resize = func(rows, columns uint16) {
		if err := unix.IoctlSetWinsize(int(master.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: rows, Col: columns}); err != nil {
			t.Fatal(err)
		}
	}
	resize(rows, columns)
	if slave, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0); err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	var text bytes.Buffer
	done := make(chan struct{})
	go func() {
		defer close(done)
		buffer := make([]byte, 4096)
		for {
			n, err := master.Read(buffer)
			mu.Lock()
			text.Write(buffer[:n])
			mu.Unlock()
			if err != nil {
				return
			}
		}
	}()
	t.Cleanup(func() {
		_ = slave.Close()
		<-done
	})
	return slave, resize, func() string {
		mu.Lock()
		defer mu.Unlock()
		return text.String()
	}
}

func TestTopRedrawsATerminalAndOutlivesItsDispatcher(t *testing.T) {
	slave, resize, said := terminal(t, 12, 70)
	address, stop := serveUntil(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan error, 1)
	o := &options{dispatcher: address, timeout: time.Second, interval: 100 * time.Millisecond}
	go func() { ended <- run(ctx, o, []string{"top"}, slave) }()
	waitFor := func(what string, is func(string) bool) {
		t.Helper()
		for end := time.Now().Add(30 * time.Second); !is(said()); time.Sleep(10 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("%s: %q", what, said())
			}
		}
	}
	waitFor("three screens", func(text string) bool { return strings.Count(text, home) >= 3 })
	resize(3, 20)
	waitFor("a small screen", func(text string) bool {
		screens := strings.Split(text, home)
		last := screens[len(screens)-1]
		return strings.HasSuffix(last, clearRest) && strings.Count(last, "\r\n") == 2
	})
	stop()
	resize(20, 100)
	waitFor("a word on the missing dispatcher", func(text string) bool { return strings.Contains(text, "no answer for") })
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	waitFor("the first screen again", func(text string) bool { return strings.HasSuffix(text, closeScreen) })
	if !strings.HasPrefix(said(), openScreen) {
		t.Errorf("%q", said()[:20])
	}
}
