package bindings

import (
	"context"
	"log/slog"
	"strings"
	"sync"
)

// maxNotices limits how many warnings are kept for Python.
const maxNotices = 100

// notices is a slog.Handler that keeps warnings until Python reads them, because the trainer's stderr belongs
// to the user.
type notices struct {
	mu    sync.Mutex
	lines []string
}

func (n *notices) Enabled(_ context.Context, level slog.Level) bool { return level >= slog.LevelWarn }

func (n *notices) Handle(_ context.Context, record slog.Record) error {
	var line strings.Builder
	line.WriteString(record.Message)
	record.Attrs(func(a slog.Attr) bool {
		line.WriteString(" " + a.Key + "=" + a.Value.String())
		return true
	})
	n.add(line.String())
	return nil
}

func (n *notices) add(line string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(n.lines) < maxNotices {
		n.lines = append(n.lines, line)
	}
}

func (n *notices) WithAttrs([]slog.Attr) slog.Handler { return n }
func (n *notices) WithGroup(string) slog.Handler      { return n }

func (n *notices) take() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	lines := n.lines
	n.lines = nil
	return lines
}
