package store

import (
	"errors"
	"fmt"
	"io/fs"
	"syscall"

	"github.com/cockroachdb/pebble/v2"
)

// What can be wrong with a store, to be tested with errors.Is. The sentence around them says which directory and what to do.
var (
	// ErrInUse: another process has the directory.
	ErrInUse = errors.New("in use by another process")
	// ErrDamaged: a checksum, a number or a length is wrong.
	ErrDamaged = errors.New("damaged")
	// ErrNewer: written by a newer Pecan.
	ErrNewer = errors.New("written by a newer version")
	// ErrNoDirectory: the directory cannot be had: its parent is missing, or it is no directory.
	ErrNoDirectory = errors.New("no such directory")
	// ErrReadOnly: nothing can be written there.
	ErrReadOnly = errors.New("not writable")
	// ErrFailed: a write failed, and the store serves no more.
	ErrFailed = errors.New("failed")
	// ErrFull: the disk has less room than the store keeps in reserve. Nothing was written; it may be tried again.
	ErrFull = errors.New("disk full")
	// ErrNoGraph: no graph is stored under the fingerprint.
	ErrNoGraph = errors.New("no such graph")
)

// fault is a typed error with a sentence.
type fault struct {
	kind, cause error
	text        string
}

func (f *fault) Error() string {
	if f.cause == nil {
		return f.text
	}
	return fmt.Sprintf("%s: %v", f.text, f.cause)
}

func (f *fault) Unwrap() []error { return []error{f.kind, f.cause} }

func faultf(kind, cause error, format string, args ...any) error {
	return &fault{kind: kind, cause: cause, text: fmt.Sprintf(format, args...)}
}

// wayOut ends every refusal of a damaged store.
const wayOut = "Restore the directory from a copy, or start with an empty one and register the datasets again"

// explainDatabase is explainOpen for a database that was there before: what pebble does not understand about it is
// damage, unless the system says that it is short of something.
func explainDatabase(dir string, err error) error {
	explained := explainOpen(dir, err)
	var known *fault
	var system syscall.Errno
	if errors.As(explained, &known) || errors.As(err, &system) {
		return explained
	}
	return faultf(ErrDamaged, err, "open store %s: pebble does not understand its files; nothing was changed. %s", dir, wayOut)
}

// explainOpen turns what the file system and pebble say into one of ours.
func explainOpen(dir string, err error) error {
	switch {
	case errors.Is(err, syscall.EAGAIN), errors.Is(err, syscall.EACCES) && isLock(err), isHeldHere(err):
		return faultf(ErrInUse, err, "open store %s: another dispatcher uses this directory; stop it or choose another --work-dir", dir)
	case errors.Is(err, fs.ErrPermission), errors.Is(err, syscall.EROFS):
		return faultf(ErrReadOnly, err, "open store %s: the directory cannot be written by this user", dir)
	case pebble.IsCorruptionError(err):
		return faultf(ErrDamaged, err, "open store %s: its files are damaged; nothing was changed. %s", dir, wayOut)
	case errors.Is(err, fs.ErrNotExist):
		return faultf(ErrDamaged, err, "open store %s: a file that belongs to it is missing; nothing was changed. %s", dir, wayOut)
	}
	return fmt.Errorf("open store %s: %w", dir, err)
}
