package bindings

import (
	"context"
	"log/slog"
	"strings"
	"sync"
)

// maxWarnings limits how many warnings are kept for Python.
const maxWarnings = 100

// warnings is a slog.Handler that keeps warnings until Python reads them, because the trainer's stderr belongs
// to the user.
type warnings struct {
	mu    sync.Mutex
	lines []string
}

func (w *warnings) Enabled(_ context.Context, level slog.Level) bool { return level >= slog.LevelWarn }

func (w *warnings) Handle(_ context.Context, record slog.Record) error {
	var line strings.Builder
	line.WriteString(record.Message)
	record.Attrs(func(a slog.Attr) bool {
		line.WriteString(" " + a.Key + "=" + a.Value.String())
		return true
	})
	w.add(line.String())
	return nil
}

func (w *warnings) add(line string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.lines) < maxWarnings {
		w.lines = append(w.lines, line)
	}
}

func (w *warnings) WithAttrs([]slog.Attr) slog.Handler { return w }
func (w *warnings) WithGroup(string) slog.Handler      { return w }

func (w *warnings) take() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	lines := w.lines
	w.lines = nil
	return lines
}
