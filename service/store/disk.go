package store

import (
	"strings"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// Metrics are measurements of a store.
type Metrics struct {
	// Bytes is the size on disk.
	Bytes uint64
	// TornTails counts the torn writes that this process found when it opened the store, and ignored.
	TornTails int
}

// Metrics returns the size of the store and the number of torn writes.
func (s *Store) Metrics() Metrics {
	f := Metrics{Bytes: s.db.Metrics().DiskSpaceUsage()}
	if s.torn {
		f.TornTails = 1
	}
	return f
}

// checkFreeSpace returns ErrFull while the disk of dir has less free space than the reserve. It returns nil if the
// file system does not report its free space.
func checkFreeSpace(fsys vfs.FS, store, dir string, reserve int64) error {
	if reserve <= 0 {
		return nil
	}
	usage, err := fsys.GetDiskUsage(dir)
	if err != nil || usage.AvailBytes >= uint64(reserve) {
		return nil
	}
	return faultf(ErrFull, nil, "write to store %s: its disk has %d free bytes, and %d are kept in reserve; free some space", store, usage.AvailBytes, reserve)
}

// strictFS wraps the file system that pebble uses, and changes how pebble creates files.
type strictFS struct{ vfs.FS }

// ReuseForWrite creates a new file instead of reusing an old log. In a reused log, old bytes would follow a torn
// record, and a torn record could not be distinguished from a damaged one.
func (f strictFS) ReuseForWrite(oldname, newname string, category vfs.DiskWriteCategory) (vfs.File, error) {
	if err := f.Remove(oldname); err != nil {
		return nil, err
	}
	return f.Create(newname, category)
}

// Create creates a file. A marker file of pebble names the current file of a kind. Create syncs the directory before
// it creates a marker. Without the sync, the marker could survive a power failure and the file that it names could not.
func (f strictFS) Create(name string, category vfs.DiskWriteCategory) (vfs.File, error) {
	if strings.HasPrefix(f.PathBase(name), "marker.") {
		if err := syncDir(f.FS, f.PathDir(name)); err != nil {
			return nil, err
		}
	}
	return f.FS.Create(name, category)
}

func syncDir(fsys vfs.FS, dir string) error {
	file, err := fsys.OpenDir(dir)
	if err != nil {
		return err
	}
	return joinClose(file.Sync(), file)
}
