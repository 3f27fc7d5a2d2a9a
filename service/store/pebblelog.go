package store

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
)

// pebbleLog sends pebble's messages to slog, and reports fatal errors and damage to the store.
type pebbleLog struct {
	log   *slog.Logger
	fatal func(why string)
	// damage is called with the path of a damaged file.
	damage func(path string)
}

// listener returns handlers for errors that would otherwise end the process. The handler for damage returns, unlike
// Fatalf, so that a reader receives pebble's error instead of waiting forever.
func (l *pebbleLog) listener() *pebble.EventListener {
	return &pebble.EventListener{
		BackgroundError: l.background,
		DataCorruption: func(info pebble.DataCorruptionInfo) {
			l.log.Error("the store is damaged", "file", info.Path, "error", info.Details)
			l.damage(info.Path)
		},
	}
}

// Infof logs pebble's messages about its files at debug level.
func (l *pebbleLog) Infof(format string, args ...any) {
	if l.log.Enabled(context.Background(), slog.LevelDebug) {
		l.log.Debug("pebble reports about its files", "text", fmt.Sprintf(format, args...))
	}
}

// Errorf logs an error after which pebble tries again.
func (l *pebbleLog) Errorf(format string, args ...any) {
	l.log.Warn("pebble failed and tries again", "text", fmt.Sprintf(format, args...))
}

// background handles an error of a flush or compaction. With a full disk or a damaged table pebble would retry at once,
// thousands of times a second, even while it opens a database. So the store fails, and the goroutine blocks here as in
// Fatalf.
func (l *pebbleLog) background(err error) {
	switch {
	case vfs.IsNoSpaceError(err):
		l.fatal(err.Error())
	case pebble.IsCorruptionError(err):
		// The DataCorruption handler has already reported the file.
	default:
		l.Errorf("background error: %s", err)
		return
	}
	select {}
}

// Fatalf reports a fatal error and never returns. If it returned, pebble would continue with a broken pipeline. The
// dispatcher ends the process when the Failed channel is closed.
func (l *pebbleLog) Fatalf(format string, args ...any) {
	l.fatal(fmt.Sprintf(format, args...))
	select {}
}

// lockError wraps an error of taking the lock. There EACCES means that the lock is taken, not that access is denied.
type lockError struct{ error }

func (e *lockError) Unwrap() error { return e.error }

func isLock(err error) bool {
	var lock *lockError
	return errors.As(err, &lock) && !strings.Contains(err.Error(), "open ")
}

// isHeldHere reports whether this process already has pebble's lock of the directory.
func isHeldHere(err error) bool { return strings.Contains(err.Error(), "lock held by current process") }
