package cli

import (
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"sync"
	"time"
)

// LogLevels has the values of --log-level, for help texts.
const LogLevels = "debug, info, warn or error"

// SetupLog returns a logger that writes records of at least the level as text. slog quotes control characters.
func SetupLog(w io.Writer, level string) (*slog.Logger, error) {
	var l slog.Level
	if err := l.UnmarshalText([]byte(level)); err != nil {
		return nil, fmt.Errorf("log level %q: want %s", level, LogLevels)
	}
	return slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{Level: l})), nil
}

// Stderr is standard error, for the logs of programs that serve others.
var Stderr = newLogWriter(os.Stderr)

// These bounds hold for a log that nobody reads. One is how long the first line waits for its reader, the other how many
// bytes of later lines wait in memory.
const (
	logPatience   = 100 * time.Millisecond
	maxWaitingLog = 1 << 20
)

// LogWriter writes lines to a file or pipe that may stop accepting them, such as a pipe that nobody reads. The program
// continues: lines wait in memory. Lines without room, and lines that cannot be written, are counted and left out. As
// long as the lines are accepted, Write returns after its line was written, so that a crash loses none.
type LogWriter struct {
	to io.Writer
	// lost counts lines that are missing and that no written line has named yet. Only writeAll uses it.
	lost int

	mu sync.Mutex
	// waiting has the lines that writeAll has not taken. bytes is the size of all lines that are not written.
	waiting [][]byte
	bytes   int
	// dropped counts the lines without room after those that wait.
	dropped int
	// late is set if a call returned before its line was written. Later calls do not wait until all lines were written.
	late bool
	// written is closed when no line waits; nil if none does.
	written chan struct{}
}

// newLogWriter returns a writer to w. Each call of Write is one line.
func newLogWriter(w io.Writer) *LogWriter { return &LogWriter{to: w} }

// Write implements io.Writer. It never fails, and waits for a bounded time.
func (l *LogWriter) Write(line []byte) (int, error) {
	l.mu.Lock()
	if l.dropped > 0 || l.bytes > 0 && l.bytes+len(line) > maxWaitingLog {
		l.dropped++
	} else {
		l.waiting = append(l.waiting, append([]byte(nil), line...))
		l.bytes += len(line)
	}
	if l.written == nil {
		l.written = make(chan struct{})
		go l.writeAll(l.written)
	}
	wait := !l.late
	l.mu.Unlock()
	if wait && !l.Flush(logPatience) {
		l.mu.Lock()
		l.late = l.written != nil
		l.mu.Unlock()
	}
	return len(line), nil
}

// Flush waits until all lines were written, but no longer than a time. It reports whether they were.
func (l *LogWriter) Flush(atMost time.Duration) bool {
	l.mu.Lock()
	written := l.written
	l.mu.Unlock()
	if written == nil {
		return true
	}
	timer := time.NewTimer(atMost)
	defer timer.Stop()
	select {
	case <-written:
		return true
	case <-timer.C:
		return false
	}
}

// writeAll writes lines until none waits.
func (l *LogWriter) writeAll(written chan struct{}) {
	for {
		l.mu.Lock()
		lines, dropped := l.waiting, l.dropped
		l.waiting, l.dropped = nil, 0
		if len(lines) == 0 && dropped == 0 {
			l.written, l.late = nil, false
			close(written)
			l.mu.Unlock()
			return
		}
		l.mu.Unlock()
		for _, line := range lines {
			l.writeLost()
			if _, err := l.to.Write(line); err != nil {
				l.lost++
			}
			l.mu.Lock()
			l.bytes -= len(line)
			l.mu.Unlock()
		}
		if dropped > 0 {
			l.lost += dropped
			l.writeLost()
		}
	}
}

// writeLost writes how many lines are missing, if some are.
func (l *LogWriter) writeLost() {
	if l.lost == 0 {
		return
	}
	if _, err := l.to.Write(missing(l.lost)); err == nil {
		l.lost = 0
	}
}

// missing returns the line that stands for lost lines.
func missing(n int) []byte {
	var line strings.Builder
	slog.New(slog.NewTextHandler(&line, nil)).Warn("lines of the log are missing because standard error was not read or could not be written; read it, or send it to a file", "lines", n)
	return []byte(line.String())
}
