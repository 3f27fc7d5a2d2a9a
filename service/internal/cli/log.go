package cli

import (
	"fmt"
	"io"
	"log/slog"
)

// LogLevels is what --log-level takes, for help texts.
const LogLevels = "debug, info, warn or error"

// SetupLog makes the process's logger: slog's text form, which quotes control characters, from level on.
func SetupLog(w io.Writer, level string) (*slog.Logger, error) {
	var l slog.Level
	if err := l.UnmarshalText([]byte(level)); err != nil {
		return nil, fmt.Errorf("log level %q: want %s", level, LogLevels)
	}
	return slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{Level: l})), nil
}
