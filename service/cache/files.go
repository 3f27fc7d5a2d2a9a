package cache

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"sync/atomic"
	"syscall"

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
	// root is nil until the directory is open.
	root atomic.Pointer[os.Root]
	// mounted is set once a file system was mounted at the path.
	mounted atomic.Bool
	read    history
}

// OpenDir opens a directory for segments. It creates the directory if its parent exists. A call that the host does not answer in
// time is an error. If the host does not answer here, later calls try to open the directory.
func OpenDir(path string, budget int64) (*Dir, error) {
	d := &disk{path: path}
	dir := New(d, budget)
	if err := dir.Call("opening it", d.make); err != nil && !errors.Is(err, ErrNoAnswer) {
		return nil, err
	}
	return dir, nil
}

// make makes the directory if there is none, and opens it.
func (d *disk) make() error {
	if err := os.Mkdir(d.path, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("make the cache directory: %w", err)
	}
	if err := d.replace(nil); err != nil {
		return fmt.Errorf("open the cache directory: %w", err)
	}
	return nil
}

// do makes a call. If it fails, and another directory is at the path now, it makes the call there: a mount has returned, or somebody
// has made the directory again.
func (d *disk) do(call func(root *os.Root) error) (err error) {
	root := d.root.Load()
	if root != nil {
		if err = call(root); err == nil {
			return nil
		}
	}
	switch none := d.replace(root); {
	case none == nil:
		return call(d.root.Load())
	case root == nil:
		return none
	case errors.Is(none, errSame):
		return err
	default:
		return fmt.Errorf("%w (the directory cannot be opened again: %v)", err, none)
	}
}

// errSame is the error if the directory at the path is the one that is open. errUnmounted is the error if a mount hid it before.
var (
	errSame      = errors.New("it is the same directory")
	errUnmounted = errors.New("its file system is not mounted")
)

// replace opens the directory at the path. It returns an error unless that is another one than old, which may be nil. The directory
// that was below a mount is no cache: it lies on another file system, which segments would fill.
func (d *disk) replace(old *os.Root) error {
	root, err := safedir.Open(d.path)
	if err != nil {
		return err
	}
	if err := d.differs(old, root); err != nil {
		return errors.Join(err, root.Close())
	}
	if !d.root.CompareAndSwap(old, root) {
		// Another call has replaced it.
		return root.Close()
	}
	if old != nil {
		_ = old.Close()
	}
	return nil
}

// differs returns an error if root may not replace old.
func (d *disk) differs(old, root *os.Root) error {
	now, err := root.Stat(".")
	if err != nil {
		return err
	}
	if old != nil {
		if was, gone := old.Stat("."); gone == nil && os.SameFile(was, now) {
			return errSame
		}
	}
	parent, err := os.Stat(d.path + "/..")
	if err != nil {
		return err
	}
	if mounted := device(now) != device(parent); mounted {
		d.mounted.Store(true)
	} else if d.mounted.Load() {
		return errUnmounted
	}
	return nil
}

// device returns the device of a file's file system.
func device(info fs.FileInfo) uint64 {
	if stat, ok := info.Sys().(*syscall.Stat_t); ok {
		return stat.Dev
	}
	return 0
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
