package main

import (
	"errors"
	"fmt"
	"os"
)

// decisionsLog is the file of --decisions-log. Before it would have more than most bytes, it gets the name NAME.1, in place of an
// earlier one. Then a new file begins. So both have at most twice as many bytes, or two lines. The dispatcher writes one line at a
// time.
type decisionsLog struct {
	name string
	// most is 0 without a bound.
	most, size int64
	file       *os.File
}

// openDecisionsLog opens or creates a log. What is no regular file, such as a pipe or a link, has no bound: it must keep its name.
func openDecisionsLog(name string, most int64) (*decisionsLog, error) {
	l := &decisionsLog{name: name, most: most}
	if err := l.open(); err != nil {
		return nil, err
	}
	return l, nil
}

func (l *decisionsLog) open() error {
	file, err := os.OpenFile(l.name, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	info, err := os.Lstat(l.name)
	if err != nil {
		return errors.Join(err, file.Close())
	}
	if l.file, l.size = file, info.Size(); !info.Mode().IsRegular() {
		l.most = 0
	}
	return nil
}

// Write writes a line. If no new file can begin, it writes the line into the full one, and returns the error.
func (l *decisionsLog) Write(line []byte) (int, error) {
	var full error
	if l.most > 0 && l.size > 0 && l.size+int64(len(line)) > l.most {
		full = l.rotate()
	}
	n, err := l.file.Write(line)
	l.size += int64(n)
	return n, errors.Join(err, full)
}

// rotate begins a new file. The old one stays open until then.
func (l *decisionsLog) rotate() error {
	old := l.file
	if err := os.Rename(l.name, l.name+".1"); err != nil {
		return fmt.Errorf("a full log: %w", err)
	}
	if err := l.open(); err != nil {
		return fmt.Errorf("a new log: %w", err)
	}
	return old.Close()
}
