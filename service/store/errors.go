package store

import (
	"errors"
	"fmt"
	"io/fs"
	"syscall"

	"github.com/cockroachdb/pebble/v2"
)

// Kinds of errors, for errors.Is. The text of each error names the directory and says what to do.
var (
	// ErrInUse means that another process uses the directory.
	ErrInUse = errors.New("in use by another process")
	// ErrDamaged means that a checksum, a record number or a length is wrong, or that data is missing.
	ErrDamaged = errors.New("damaged")
	// ErrNewer means that a newer version of Pecan wrote the store.
	ErrNewer = errors.New("written by a newer version")
	// ErrNoDirectory means that the path is not a directory, or that its parent directory is missing.
	ErrNoDirectory = errors.New("no such directory")
	// ErrReadOnly means that the directory is not writable.
	ErrReadOnly = errors.New("not writable")
	// ErrFailed means that a write failed. The store accepts no further calls.
	ErrFailed = errors.New("failed")
	// ErrFull means that the disk has less free space than Options.Reserve. Nothing was written; the caller may try again.
	ErrFull = errors.New("disk full")
	// ErrNoGraph means that no graph is stored under the fingerprint.
	ErrNoGraph = errors.New("no such graph")
)

// fault is an error of one of the kinds above, with a text for the user.
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

// restoreHint ends every error about a damaged store.
const restoreHint = "Restore the directory from a copy, or start with an empty one and register the datasets again"

// explainDatabase is explainOpen for an existing database. It reports every other error as damage, except a system
// error: that one says that a resource is missing.
func explainDatabase(dir string, err error) error {
	explained := explainOpen(dir, err)
	var typed *fault
	var system syscall.Errno
	if errors.As(explained, &typed) || errors.As(err, &system) {
		return explained
	}
	return faultf(ErrDamaged, err, "open store %s: pebble cannot read its files; nothing was changed. %s", dir, restoreHint)
}

// explainOpen converts an error of the file system or of pebble into an error of this package.
func explainOpen(dir string, err error) error {
	switch {
	case errors.Is(err, syscall.EAGAIN), errors.Is(err, syscall.EACCES) && isLock(err), isHeldHere(err):
		return faultf(ErrInUse, err, "open store %s: another dispatcher uses this directory; stop it or choose another --work-dir", dir)
	case errors.Is(err, fs.ErrPermission), errors.Is(err, syscall.EROFS):
		return faultf(ErrReadOnly, err, "open store %s: the directory cannot be written by this user", dir)
	case pebble.IsCorruptionError(err):
		return faultf(ErrDamaged, err, "open store %s: its files are damaged; nothing was changed. %s", dir, restoreHint)
	case errors.Is(err, fs.ErrNotExist):
		return faultf(ErrDamaged, err, "open store %s: a file that belongs to it is missing; nothing was changed. %s", dir, restoreHint)
	}
	return fmt.Errorf("open store %s: %w", dir, err)
}
