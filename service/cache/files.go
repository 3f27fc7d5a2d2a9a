package cache

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"github.com/pecan-ml/pecan/service/internal/safedir"
)

// FileSystem is what a Dir needs of one directory. Names have no separators.
type FileSystem interface {
	// Create makes a file that is not there yet.
	Create(name string) (File, error)
	// Open opens a regular file for reading and gives its size.
	Open(name string) (Readable, int64, error)
	Rename(from, to string) error
	// Remove deletes a file; one that is not there is no error.
	Remove(name string) error
	List() ([]Info, error)
	// SyncDir makes names durable.
	SyncDir() error
}

// File is one that is written.
type File interface {
	io.WriteCloser
	Sync() error
}

// Readable is a file that is read.
type Readable interface {
	io.ReaderAt
	io.Closer
}

// Info is a name in the directory and the size of its file.
type Info struct {
	Name string
	Size int64
}

// disk is a directory of the host. Names cannot lead out of it, whatever links lie there.
type disk struct{ root *os.Root }

// OpenDir opens a directory for segments, and makes it where only its last part is missing.
func OpenDir(path string, budget int64) (*Dir, error) {
	if err := os.Mkdir(path, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, fmt.Errorf("make the cache directory: %w", err)
	}
	root, err := safedir.Open(path)
	if err != nil {
		return nil, fmt.Errorf("open the cache directory: %w", err)
	}
	return New(disk{root}, budget), nil
}

// Create implements FileSystem.
func (d disk) Create(name string) (File, error) { return safedir.Create(d.root, name) }

// Open implements FileSystem.
func (d disk) Open(name string) (Readable, int64, error) { return safedir.OpenFile(d.root, name) }

// Rename implements FileSystem.
func (d disk) Rename(from, to string) error { return d.root.Rename(from, to) }

// Remove implements FileSystem.
func (d disk) Remove(name string) error { return safedir.Remove(d.root, name) }

// List implements FileSystem.
func (d disk) List() ([]Info, error) {
	dir, err := d.root.Open(".")
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	entries, err := dir.ReadDir(-1)
	if err != nil {
		return nil, err
	}
	out := make([]Info, 0, len(entries))
	for _, entry := range entries {
		info, err := entry.Info()
		if err != nil {
			// It went while the list was read.
			continue
		}
		out = append(out, Info{entry.Name(), info.Size()})
	}
	return out, nil
}

// SyncDir implements FileSystem.
func (d disk) SyncDir() error { return safedir.Sync(d.root, ".") }
