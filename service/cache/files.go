package cache

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"sync/atomic"

	"github.com/pecan-ml/pecan/service/internal/safedir"
)

// FileSystem has the operations on one directory that a Dir needs. Names have no separators.
type FileSystem interface {
	// Create creates a file. An existing file is an error.
	Create(name string) (File, error)
	// Open opens a regular file for reading and returns its size. It refuses files of other users.
	Open(name string) (Readable, int64, error)
	Rename(from, to string) error
	// Remove deletes a file, but no file of another user. A missing file is no error.
	Remove(name string) error
	List() ([]Info, error)
	// SyncDir makes names durable.
	SyncDir() error
}

// File is a file open for writing.
type File interface {
	io.WriteCloser
	Sync() error
}

// Readable is a file open for reading. One of type direct needs aligned reads.
type Readable interface {
	io.ReaderAt
	io.Closer
}

// Info is the name and the size of a file.
type Info struct {
	Name string
	Size int64
	// Foreign is set if the file belongs to another user.
	Foreign bool
}

// disk is a directory of the host. os.Root keeps every access inside it, also through links.
type disk struct {
	path string
	root atomic.Pointer[os.Root]
	read history
}

// OpenDir opens a directory for segments. It creates the directory if its parent exists. A call that the host does not answer in
// time is an error.
func OpenDir(path string, budget int64) (*Dir, error) {
	if err := os.Mkdir(path, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, fmt.Errorf("make the cache directory: %w", err)
	}
	root, err := safedir.Open(path)
	if err != nil {
		return nil, fmt.Errorf("open the cache directory: %w", err)
	}
	d := &disk{path: path}
	d.root.Store(root)
	return New(d, budget), nil
}

// do makes a call. If it fails, and another directory is at the path now, it makes the call there: a mount has returned, or somebody
// has made the directory again.
func (d *disk) do(call func(root *os.Root) error) error {
	root := d.root.Load()
	err := call(root)
	if err != nil && d.replace(root) {
		return call(d.root.Load())
	}
	return err
}

// replace opens the directory at the path, and returns whether it is another one than old.
func (d *disk) replace(old *os.Root) bool {
	root, err := safedir.Open(d.path)
	if err != nil {
		return false
	}
	was, gone := old.Stat(".")
	now, err := root.Stat(".")
	if err != nil || gone == nil && os.SameFile(was, now) || !d.root.CompareAndSwap(old, root) {
		_ = root.Close()
		return d.root.Load() != old
	}
	_ = old.Close()
	return true
}

// Create implements FileSystem.
func (d *disk) Create(name string) (file File, err error) {
	err = d.do(func(root *os.Root) (err error) {
		file, err = safedir.Create(root, name)
		return err
	})
	return file, err
}

// Open implements FileSystem.
func (d *disk) Open(name string) (file Readable, size int64, err error) {
	err = d.do(func(root *os.Root) (err error) {
		opened, bytes, err := safedir.OpenFile(root, name)
		if err == nil {
			file, size = d.read.openDirect(opened, name, bytes), bytes
		}
		return err
	})
	return file, size, err
}

// Rename implements FileSystem.
func (d *disk) Rename(from, to string) error {
	return d.do(func(root *os.Root) error { return root.Rename(from, to) })
}

// Remove implements FileSystem.
func (d *disk) Remove(name string) error {
	return d.do(func(root *os.Root) error {
		if err := own(root, name); errors.Is(err, fs.ErrNotExist) {
			return nil
		} else if err != nil {
			return err
		}
		return safedir.Remove(root, name)
	})
}

// own returns safedir.ErrForeign for a file of another user. A link belongs to whoever made the link.
func own(root *os.Root, name string) error {
	info, err := root.Lstat(name)
	if err != nil {
		return err
	}
	return safedir.Foreign(info)
}

// List implements FileSystem.
func (d *disk) List() (out []Info, err error) {
	err = d.do(func(root *os.Root) (err error) {
		out, err = list(root)
		return err
	})
	return out, err
}

func list(root *os.Root) ([]Info, error) {
	dir, err := root.Open(".")
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
			// The file was removed during the listing.
			continue
		}
		out = append(out, Info{entry.Name(), info.Size(), safedir.Foreign(info) != nil})
	}
	return out, nil
}

// SyncDir implements FileSystem.
func (d *disk) SyncDir() error {
	return d.do(func(root *os.Root) error { return safedir.Sync(root, ".") })
}
