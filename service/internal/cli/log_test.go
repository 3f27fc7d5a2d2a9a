package cli

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"
)

// logged logs lines 0 to n-1, and fails the test if that does not return.
func logged(t *testing.T, w *LogWriter, n int) {
	t.Helper()
	log, err := SetupLog(w, "info")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for i := range n {
			log.Info("stream starts", "stream", i, "padding", strings.Repeat("x", 200))
		}
	}()
	select {
	case <-done:
	case <-time.After(30 * time.Second):
		t.Fatal("the program waits for the reader of its log")
	}
}

var streamOf = regexp.MustCompile(` stream=(\d+) `)

func TestAnUnreadLogDoesNotStopTheProgram(t *testing.T) {
	for name, c := range map[string]struct {
		lines int
		drops bool
	}{
		"what fits into memory is kept": {lines: 2000},
		"what does not fit is counted":  {lines: 10_000, drops: true},
	} {
		t.Run(name, func(t *testing.T) {
			reader, writer, err := os.Pipe()
			if err != nil {
				t.Fatal(err)
			}
			defer reader.Close()
			w := newLogWriter(writer)
			logged(t, w, c.lines)
			// The reader returns: it gets the first lines in order, how many are missing, and what comes later.
			var lines []string
			read := make(chan struct{})
			go func() {
				defer close(read)
				for scan := bufio.NewScanner(reader); scan.Scan(); {
					lines = append(lines, scan.Text())
				}
			}()
			w.Flush(30 * time.Second)
			fmt.Fprintln(w, "the last line")
			w.Flush(30 * time.Second)
			writer.Close()
			<-read
			kept, dropped := 0, 0
			for kept < len(lines) {
				found := streamOf.FindStringSubmatch(lines[kept])
				if found == nil {
					break
				}
				if found[1] != strconv.Itoa(kept) {
					t.Fatalf("line %d is %q", kept, lines[kept])
				}
				kept++
			}
			rest := lines[kept:]
			if c.drops {
				if len(rest) == 0 || !strings.Contains(rest[0], `msg="lines of the log are missing`) {
					t.Fatalf("after %d lines comes %q", kept, rest)
				}
				if dropped, err = strconv.Atoi(rest[0][strings.LastIndex(rest[0], "=")+1:]); err != nil || dropped == 0 {
					t.Fatalf("%q: %v", rest[0], err)
				}
				rest = rest[1:]
			}
			if kept+dropped != c.lines {
				t.Errorf("%d lines came and %d are missing, of %d", kept, dropped, c.lines)
			}
			if len(rest) != 1 || rest[0] != "the last line" {
				t.Errorf("the end is %q", rest)
			}
		})
	}
}

// slowBuffer takes a while for each line.
type slowBuffer struct{ bytes.Buffer }

func (s *slowBuffer) Write(line []byte) (int, error) {
	time.Sleep(time.Millisecond)
	return s.Buffer.Write(line)
}

func TestALineIsWrittenWhenTheCallReturns(t *testing.T) {
	const lines = 100
	out := new(slowBuffer)
	w, written := newLogWriter(out), 0
	for i := range lines {
		fmt.Fprintln(w, i)
		// On a busy machine some lines are late.
		w.mu.Lock()
		if w.written == nil && strings.HasSuffix(out.String(), fmt.Sprintln(i)) {
			written++
		}
		w.mu.Unlock()
		// After a late line, later ones do not wait until all were written.
		if !w.Flush(30 * time.Second) {
			t.Fatalf("line %d is not written", i)
		}
	}
	if written < lines/2 {
		t.Errorf("%d of %d lines were written when the call returned", written, lines)
	}
	if !w.Flush(30*time.Second) || strings.Count(out.String(), "\n") != lines {
		t.Errorf("the log is %q", out.String())
	}
}

func TestALongLineIsWrittenIfNothingWaits(t *testing.T) {
	var written bytes.Buffer
	l := newLogWriter(&written)
	line := append(bytes.Repeat([]byte("x"), 2*maxWaitingLog), '\n')
	if _, err := l.Write(line); err != nil || !l.Flush(time.Minute) {
		t.Fatal("the line was not written", err)
	}
	if !bytes.Equal(written.Bytes(), line) {
		t.Errorf("%d bytes were written, want %d", written.Len(), len(line))
	}
}

// gate is a log whose reader takes one line for each permit.
type gate struct {
	permits chan struct{}
	text    bytes.Buffer
}

func (g *gate) Write(line []byte) (int, error) {
	<-g.permits
	return g.text.Write(line)
}

// came counts the lines of a log that came, and those that it says are missing.
func came(t *testing.T, log string) (came, missing int) {
	t.Helper()
	for line := range strings.Lines(log) {
		if !strings.Contains(line, "lines of the log are missing") {
			came++
			continue
		}
		n, err := strconv.Atoi(strings.TrimSpace(line[strings.LastIndex(line, "=")+1:]))
		if err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		missing += n
	}
	return came, missing
}

func TestLinesThatAreBeingWrittenTakeRoom(t *testing.T) {
	const length, lines = 1 << 10, 3000
	g := &gate{permits: make(chan struct{})}
	w, line := newLogWriter(g), append(bytes.Repeat([]byte("x"), length-1), '\n')
	write := func(n int) {
		for range n {
			if _, err := w.Write(line); err != nil {
				t.Fatal(err)
			}
		}
	}
	taken := func() {
		for end := time.Now().Add(30 * time.Second); ; time.Sleep(time.Millisecond) {
			w.mu.Lock()
			n := len(w.waiting)
			w.mu.Unlock()
			if n == 0 {
				return
			}
			if time.Now().After(end) {
				t.Fatalf("%d lines wait", n)
			}
		}
	}
	write(1)
	taken()
	write(lines)
	// The reader takes the first line, and the writer all others.
	g.permits <- struct{}{}
	taken()
	write(lines - 1)
	close(g.permits)
	if !w.Flush(30 * time.Second) {
		t.Fatal("the lines are not written")
	}
	kept, missing := came(t, g.text.String())
	// The first line was written before the last ones came.
	if most := maxWaitingLog/length + 1; kept != most {
		t.Errorf("%d lines waited, want %d", kept, most)
	}
	if kept+missing != 2*lines {
		t.Errorf("%d lines came and %d are missing, of %d", kept, missing, 2*lines)
	}
}

// fullDisk refuses lines for a while.
type fullDisk struct {
	full bool
	text bytes.Buffer
}

func (f *fullDisk) Write(line []byte) (int, error) {
	if f.full {
		return 0, errors.New("no space left")
	}
	return f.text.Write(line)
}

func TestLinesThatCannotBeWrittenAreCounted(t *testing.T) {
	disk := &fullDisk{}
	w := newLogWriter(disk)
	say := func(full bool, line string) {
		disk.full = full
		fmt.Fprintln(w, line)
		if !w.Flush(30 * time.Second) {
			t.Fatalf("%q is not written", line)
		}
	}
	say(false, "first")
	say(true, "second")
	say(true, "third")
	say(false, "fourth")
	lines := strings.Split(disk.text.String(), "\n")
	if kept, missing := came(t, disk.text.String()); kept != 2 || missing != 2 || lines[0] != "first" || lines[2] != "fourth" {
		t.Errorf("the log is %q", lines)
	}
}
