package bindings

import (
	"context"
	"log/slog"
	"strings"
	"sync"

	"github.com/pecan-ml/pecan/native/client"
)

// maxMessages limits how many messages are kept for Python.
const maxMessages = 100

// message is one line of the trainer's log.
type message struct {
	// Level is "warning" or "info".
	Level string `json:"level"`
	Text  string `json:"text"`
}

// messages is a slog.Handler that keeps warnings and notices until Python reads them, because the trainer's stderr
// belongs to the user.
type messages struct {
	mu   sync.Mutex
	kept []message
}

func (m *messages) Enabled(_ context.Context, level slog.Level) bool {
	return level >= client.LevelNotice
}

func (m *messages) Handle(_ context.Context, record slog.Record) error {
	var line strings.Builder
	line.WriteString(record.Message)
	record.Attrs(func(a slog.Attr) bool {
		line.WriteString(" " + a.Key + "=" + a.Value.String())
		return true
	})
	level := "info"
	if record.Level >= slog.LevelWarn {
		level = "warning"
	}
	m.add(message{level, line.String()})
	return nil
}

func (m *messages) warn(text string) { m.add(message{"warning", text}) }

func (m *messages) add(one message) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.kept) < maxMessages {
		m.kept = append(m.kept, one)
	}
}

func (m *messages) WithAttrs([]slog.Attr) slog.Handler { return m }
func (m *messages) WithGroup(string) slog.Handler      { return m }

func (m *messages) take() []message {
	m.mu.Lock()
	defer m.mu.Unlock()
	kept := m.kept
	m.kept = nil
	return kept
}
