package cli

import (
	"fmt"
	"io"
	"log/slog"
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
