package prices

import (
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/pecan-ml/pecan/policies/autoscale"
)

// File is a table of prices in a file. A changed file is read again when prices are next asked for.
type File struct {
	path string
	log  *slog.Logger

	mu    sync.Mutex
	table *Table
	// seen is the version of the file that was read last, valid or not.
	seen version
}

// version tells one content of a file from the next.
type version struct {
	size     int64
	modified time.Time
}

// Open reads the table in a file.
func Open(path string, log *slog.Logger) (*File, error) {
	f := &File{path: path, log: log}
	seen, err := f.version()
	if err != nil {
		return nil, err
	}
	f.seen = seen
	f.table, err = f.read()
	return f, err
}

// Of returns the prices of a job with a trainer and workers of some machines, and their currency. If the file has changed and
// cannot be read, the earlier table counts, and the log says so once.
func (f *File) Of(trainer, worker string) (p autoscale.Prices, currency string, err error) {
	table := f.current()
	of, err := ParseMachine(trainer)
	if err != nil {
		return p, table.Currency, fmt.Errorf("the trainer's type: %w", err)
	}
	remote, err := ParseMachine(worker)
	if err != nil {
		return p, table.Currency, fmt.Errorf("the workers' type: %w", err)
	}
	p, err = table.Of(of, remote)
	return p, table.Currency, err
}

// Storage returns the price of a byte of caches for an hour.
func (f *File) Storage() float64 { return f.current().Storage.PerByteHour() }

func (f *File) current() *Table {
	f.mu.Lock()
	defer f.mu.Unlock()
	seen, err := f.version()
	if err == nil && seen == f.seen {
		return f.table
	}
	var changed *Table
	if err == nil {
		changed, err = f.read()
	}
	switch {
	case err == nil:
		f.log.Info("the table of prices has changed", "file", f.path)
		f.table = changed
	case seen != f.seen:
		f.log.Warn("the table of prices has changed and cannot be used; the earlier prices stay in use", "file", f.path, "error", err)
	}
	f.seen = seen
	return f.table
}

// version returns the zero version of a file that does not exist.
func (f *File) version() (version, error) {
	info, err := os.Stat(f.path)
	if err != nil {
		return version{}, err
	}
	return version{info.Size(), info.ModTime()}, nil
}

func (f *File) read() (*Table, error) {
	text, err := os.ReadFile(f.path)
	if err != nil {
		return nil, err
	}
	table, err := Parse(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", f.path, err)
	}
	return table, nil
}
