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

// Reader looks at a store that no dispatcher has, and changes nothing in its directory.
type Reader struct {
	store *Store
	tail  Tail
	lock  io.Closer
}

// OpenReader opens a directory for looking only. Damage that shows up later is an error of what reads it.
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
	quiet := &quietLock{FS: opts.FS}
	lock, err := pebble.LockDirectory(dir, quiet)
	if err != nil {
		return nil, explainOpen(dir, &lockError{err})
	}
	r := &Reader{store: &Store{dir: dir, fs: opts.FS, failed: make(chan struct{}), next: 1}, lock: lock}
	if err := r.open(opts.FS, lock); err != nil {
		return nil, errors.Join(err, lock.Close())
	}
	return r, nil
}

func (r *Reader) open(on vfs.FS, lock *pebble.Lock) (err error) {
	dir := r.store.dir
	if r.tail, _, err = readTail(on, dir); err != nil {
		return explainOpen(dir, err)
	}
	r.store.db, err = pebble.Open(dir, &pebble.Options{FS: on, Lock: lock, ReadOnly: true, MemTableSize: tableBytes, Logger: silent{}})
	switch {
	case errors.Is(err, pebble.ErrDBDoesNotExist):
		return faultf(ErrNoDirectory, nil, "read store %s: there is no store in it", dir)
	case err != nil:
		return explainDatabase(dir, err)
	}
	if version, found, err := r.store.get([]byte("format")); err == nil && found && !strings.HasPrefix(string(version), formatName) {
		return errors.Join(faultf(ErrNoDirectory, nil, "read store %s: it is not a store of Pecan", dir), r.store.db.Close())
	}
	return nil
}

// Close lets others have the store.
func (r *Reader) Close() error { return errors.Join(r.store.db.Close(), r.lock.Close()) }

// Dir is the directory.
func (r *Reader) Dir() string { return r.store.dir }

// Tail is how the newest log ends.
func (r *Reader) Tail() Tail { return r.tail }

// Acknowledged is the number of the last record that is known to have been acknowledged; spoilt says that one of the two marks of it
// cannot be read, and might have told of more.
func (r *Reader) Acknowledged() (last uint64, spoilt bool, err error) {
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
	return max(m.known, 1) - 1, m.spoilt, err
}

// Snapshot gives the snapshot and how many records it stands for; nil when there is none.
func (r *Reader) Snapshot() (data []byte, records uint64, err error) {
	header, found, err := r.store.readHeader([]byte("snapshot"))
	if err != nil || !found {
		return nil, 0, err
	}
	data, err = r.store.readChunks([]byte("snapshot"), header)
	return data, header.records, err
}

// Records gives the records behind the snapshot, in order. One that is missing ends them with an error.
func (r *Reader) Records(do func(number uint64, data []byte) error) error {
	header, _, err := r.store.readHeader([]byte("snapshot"))
	if err != nil {
		return err
	}
	return r.store.eachRecord(header.records, func(number uint64, data func() []byte) error { return do(number, data()) })
}

// Graphs gives the graphs with their lengths; wrong says what is wrong with one.
func (r *Reader) Graphs(do func(fingerprint string, bytes uint64, wrong error)) error {
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

// Verify reads every block of every table, also those of what was deleted since.
func (r *Reader) Verify() error {
	if err := r.store.db.CheckLevels(nil); err != nil {
		return faultf(ErrDamaged, err, "read store %s: its tables are damaged", r.store.dir)
	}
	return nil
}

// silent is a logger for what is told as an error anyway.
type silent struct{}

// Infof implements pebble.Logger.
func (silent) Infof(string, ...any) {}

// Errorf implements pebble.Logger.
func (silent) Errorf(string, ...any) {}

// Fatalf implements pebble.Logger. A database that is only read has nothing to die of.
func (silent) Fatalf(string, ...any) {}

// quietLock locks a directory without making or changing its lock file: where there is none, nobody has the store.
type quietLock struct{ vfs.FS }

// Lock takes the lock for reading, which a dispatcher's lock keeps away.
func (q *quietLock) Lock(name string) (io.Closer, error) {
	if q.FS != vfs.Default {
		return q.FS.Lock(name)
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
