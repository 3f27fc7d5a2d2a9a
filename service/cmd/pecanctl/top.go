package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/proto/reason"
	"github.com/pecan-ml/pecan/service/internal/check"
)

const (
	// openScreen shows the terminal's second screen without a cursor, closeScreen brings the first one back.
	openScreen, closeScreen = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"
	// home moves to the first line, clearLine clears the rest of a line, clearRest what is below.
	home, clearLine, clearRest = "\x1b[H", "\x1b[K", "\x1b[J"
)

// top shows jobs and workers again and again until ctx ends. Without a terminal, screens follow each other.
func top(ctx context.Context, o *options, args []string, out io.Writer) error {
	if err := errors.Join(check.Dial("--dispatcher", o.dispatcher), check.Duration("--interval", o.interval, 100*time.Millisecond), check.Duration("--timeout", o.timeout, 1)); err != nil {
		return err
	}
	switch {
	case len(args) > 0:
		return fmt.Errorf("top takes no arguments, got %q: it shows all jobs", strings.Join(args, " "))
	case o.json:
		return errors.New("top has no JSON: pecanctl status --json has what it shows")
	}
	// A wrong address fails at once. A dispatcher that goes away later is waited for.
	shown, err := statusOf(ctx, o)
	if err != nil {
		return err
	}
	if o.once {
		width, _ := screen(out)
		return writeLines(out, screenLines(shown, "", width, 0))
	}
	return redraw(ctx, o, shown, out)
}

// redraw draws screens until ctx ends.
func redraw(ctx context.Context, o *options, shown *pecanv1.StatusResponse, out io.Writer) error {
	_, live := terminalSize(out)
	if live {
		if _, err := io.WriteString(out, openScreen); err != nil {
			return err
		}
		// If the terminal is gone, there is nothing to restore.
		defer func() { _, _ = io.WriteString(out, closeScreen) }()
	}
	resized := make(chan os.Signal, 1)
	if live {
		signal.Notify(resized, syscall.SIGWINCH)
		defer signal.Stop(resized)
	}
	next := time.NewTicker(o.interval)
	defer next.Stop()
	problem, since := "", time.Now()
	for {
		if err := draw(out, shown, problem, live); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-resized:
			continue
		case <-next.C:
		}
		fresh, err := statusOf(ctx, o)
		switch {
		case ctx.Err() != nil:
			return nil
		case err == nil:
			shown, problem, since = fresh, "", time.Now()
		default:
			problem = fmt.Sprintf("no answer for %s, trying again: %v", seconds(time.Since(since).Seconds()), err)
		}
	}
}

// statusOf asks for the status once.
func statusOf(ctx context.Context, o *options) (answer *pecanv1.StatusResponse, err error) {
	err = ask(ctx, o, func(ctx context.Context, api pecanv1.DispatcherClient) (err error) {
		if answer, err = api.Status(ctx, &pecanv1.StatusRequest{}); err != nil {
			return fmt.Errorf("get the status of dispatcher %s: %s; is it running, and is this its address?", o.dispatcher, reason.From(err).Message)
		}
		return nil
	})
	return answer, err
}

// draw writes one screen over the one before it, or below it if out is no terminal.
func draw(out io.Writer, shown *pecanv1.StatusResponse, problem string, live bool) error {
	width, height := screen(out)
	lines := screenLines(shown, problem, width, height)
	if !live {
		return writeLines(out, append(lines, ""))
	}
	// The last line ends without a line feed, which would scroll a full screen.
	_, err := io.WriteString(out, home+strings.Join(lines, clearLine+"\r\n")+clearLine+clearRest)
	return err
}

func writeLines(out io.Writer, lines []string) error {
	_, err := io.WriteString(out, strings.Join(lines, "\n")+"\n")
	return err
}

// screen returns the room for one screen. The height is 0 without a terminal, which means that there is room for all lines.
func screen(out io.Writer) (width, height int) {
	size, is := terminalSize(out)
	if !is {
		return widest, 0
	}
	return int(size.Col), int(size.Row)
}

// terminalSize returns the size of the terminal that out is; false if it is none.
func terminalSize(out io.Writer) (*unix.Winsize, bool) {
	file, ok := out.(*os.File)
	if !ok {
		return nil, false
	}
	size, err := unix.IoctlGetWinsize(int(file.Fd()), unix.TIOCGWINSZ)
	return size, err == nil && size.Col > 0 && size.Row > 0
}
