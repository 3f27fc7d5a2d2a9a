package store

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"golang.org/x/sys/unix"
)

// Reader reads a store that no dispatcher uses, and changes nothing in its directory.
type Reader struct {
	store *Store
	tail  Tail
	lock  io.Closer
}

// OpenReader opens a directory for reading only. If data is damaged, the method that reads it returns an error.
func OpenReader(opts Options) (*Reader, error) {
	dir, err := filepath.Abs(opts.Dir)
	if err != nil {
		return nil, err
	}
	if opts.FS == nil {
		opts.FS = vfs.Default
	}
	if info, err := opts.FS.Stat(dir); err != nil {
		return nil, faultf(ErrNoDirectory, err, "read store %s", dir)
	} else if !info.IsDir() {
		return nil, faultf(ErrNoDirectory, nil, "read store %s: it is not a directory", dir)
	}
	lock, err := pebble.LockDirectory(dir, &readLock{FS: opts.FS})
	if err != nil {
		return nil, explainOpen(dir, &lockError{err})
	}
	r := &Reader{store: &Store{dir: dir, fs: opts.FS, failed: make(chan struct{}), next: 1}, lock: lock}
	if err := r.open(opts.FS, lock); err != nil {
		return nil, errors.Join(err, lock.Close())
	}
	return r, nil
}

func (r *Reader) open(fsys vfs.FS, lock *pebble.Lock) (err error) {
	dir := r.store.dir
	if r.tail, _, err = readTail(fsys, dir); err != nil {
		return explainOpen(dir, err)
	}
	r.store.db, err = pebble.Open(dir, &pebble.Options{FS: fsys, Lock: lock, ReadOnly: true, MemTableSize: tableBytes, Logger: silentLogger{}})
	switch {
	case errors.Is(err, pebble.ErrDBDoesNotExist):
		return faultf(ErrNoDirectory, nil, "read store %s: the directory has no store", dir)
	case err != nil:
		return explainDatabase(dir, err)
	}
	if version, found, err := r.store.get([]byte("format")); err == nil && found && !strings.HasPrefix(string(version), formatName) {
		return errors.Join(faultf(ErrNoDirectory, nil, "read store %s: it is not a store of Pecan", dir), r.store.db.Close())
	}
	return nil
}

// Close releases the store.
func (r *Reader) Close() error { return errors.Join(r.store.db.Close(), r.lock.Close()) }

// Dir returns the directory.
func (r *Reader) Dir() string { return r.store.dir }

// Tail returns a description of the end of the newest log.
func (r *Reader) Tail() Tail { return r.tail }

// Acknowledged returns the number of the last record that the mark says was acknowledged. invalidSlot is set if one of
// the two slots of the mark is invalid. The invalid slot may have had a larger number.
func (r *Reader) Acknowledged() (last uint64, invalidSlot bool, err error) {
	path := filepath.Join(r.store.dir, markName)
	file, err := r.store.fs.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, false, faultf(ErrDamaged, nil, "%s is missing", path)
	}
	if err != nil {
		return 0, false, err
	}
	m := &mark{file: file, path: path}
	err = joinClose(m.read(), file)
	return max(m.next, 1) - 1, m.invalidSlot, err
}

// Snapshot returns the snapshot and the number of records that it replaces. data is nil if there is no snapshot.
func (r *Reader) Snapshot() (data []byte, records uint64, err error) {
	header, found, err := r.store.readHeader([]byte("snapshot"))
	if err != nil || !found {
		return nil, 0, err
	}
	data, err = r.store.readChunks([]byte("snapshot"), header)
	return data, header.records, err
}

// Records calls do with each record after the snapshot, in order. It returns an error at the first missing record.
func (r *Reader) Records(do func(number uint64, data []byte) error) error {
	header, _, err := r.store.readHeader([]byte("snapshot"))
	if err != nil {
		return err
	}
	return r.store.eachRecord(header.records, func(number uint64, data func() []byte) error { return do(number, data()) })
}

// Graphs calls do with each graph and its length. readErr is the error of a graph that cannot be read.
func (r *Reader) Graphs(do func(fingerprint string, bytes uint64, readErr error)) error {
	it, err := r.store.db.NewIter(&pebble.IterOptions{LowerBound: []byte("graph/"), UpperBound: []byte("graph0")})
	if err != nil {
		return explainOpen(r.store.dir, err)
	}
	for ok := it.First(); ok; ok = it.Next() {
		name, isHeader := bytes.CutPrefix(it.Key(), []byte("graph/"))
		if !isHeader || bytes.IndexByte(name, '/') >= 0 {
			continue
		}
		data, err := r.store.Graph(string(name))
		do(string(name), uint64(len(data)), err)
	}
	if err := it.Close(); err != nil {
		return explainOpen(r.store.dir, err)
	}
	return nil
}

// Verify reads every block of every table, including blocks whose data was deleted since.
func (r *Reader) Verify() error {
	if err := r.store.db.CheckLevels(nil); err != nil {
		return faultf(ErrDamaged, err, "read store %s: its tables are damaged", r.store.dir)
	}
	return nil
}

// silentLogger discards pebble's messages. Errors among these messages are also returned.
type silentLogger struct{}

// Infof implements pebble.Logger.
func (silentLogger) Infof(string, ...any) {}

// Errorf implements pebble.Logger.
func (silentLogger) Errorf(string, ...any) {}

// Fatalf implements pebble.Logger. A database that is open for reading has no fatal errors.
func (silentLogger) Fatalf(string, ...any) {}

// readLock locks a directory without creating or changing its lock file. If there is no lock file, no process uses the
// store.
type readLock struct{ vfs.FS }

// Lock takes the lock for reading. It fails while a dispatcher has the lock.
func (l *readLock) Lock(name string) (io.Closer, error) {
	if l.FS != vfs.Default {
		return l.FS.Lock(name)
	}
	file, err := os.Open(name)
	if errors.Is(err, fs.ErrNotExist) {
		return io.NopCloser(nil), nil
	}
	if err != nil {
		return nil, err
	}
	lock := unix.Flock_t{Type: unix.F_RDLCK, Whence: io.SeekStart}
	if err := unix.FcntlFlock(file.Fd(), unix.F_SETLK, &lock); err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return file, nil
}
