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

// pebbleLog sends pebble's talk to slog, and what ends a store to the store.
type pebbleLog struct {
	log   *slog.Logger
	fatal func(why string)
	// damage is told of files that are not what was written.
	damage func(why string)
}

// listener hears of what pebble would otherwise take for the end of the process. It returns from damage, unlike Fatalf:
// whoever reads gets pebble's error then, and is not left waiting.
func (l *pebbleLog) listener() *pebble.EventListener {
	return &pebble.EventListener{
		BackgroundError: l.background,
		DataCorruption: func(info pebble.DataCorruptionInfo) {
			l.log.Error("the store is damaged", "file", info.Path, "error", info.Details)
			l.damage(info.Path)
		},
	}
}

// Infof is pebble's chatter about files: for debugging only.
func (l *pebbleLog) Infof(format string, args ...any) {
	if l.log.Enabled(context.Background(), slog.LevelDebug) {
		l.log.Debug("pebble", "text", fmt.Sprintf(format, args...))
	}
}

// Errorf is what pebble will try again.
func (l *pebbleLog) Errorf(format string, args ...any) {
	l.log.Warn("store", "text", fmt.Sprintf(format, args...))
}

// background is told what fails in a flush or compaction. On a full disk, and over a damaged table, pebble begins anew at once, thousands of
// times a second, also while it opens a database; the store fails instead, and pebble's goroutine stays here, as in Fatalf.
func (l *pebbleLog) background(err error) {
	switch {
	case vfs.IsNoSpaceError(err):
		l.fatal(err.Error())
	case pebble.IsCorruptionError(err):
		// The listener was told of the file before.
	default:
		l.Errorf("background error: %s", err)
		return
	}
	select {}
}

// Fatalf must not return: pebble would go on with a broken pipeline. The goroutine stays here until the process
// ends, which the closed Failed channel makes happen.
func (l *pebbleLog) Fatalf(format string, args ...any) {
	l.fatal(fmt.Sprintf(format, args...))
	select {}
}

// lockError marks an error as one of taking the lock, where EACCES means taken and not forbidden.
type lockError struct{ error }

func (e *lockError) Unwrap() error { return e.error }

func isLock(err error) bool {
	var lock *lockError
	return errors.As(err, &lock) && !strings.Contains(err.Error(), "open ")
}

// isHeldHere recognises pebble's refusal to lock a directory twice in one process.
func isHeldHere(err error) bool { return strings.Contains(err.Error(), "lock held by current process") }
