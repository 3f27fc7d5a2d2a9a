package store

import (
	"strings"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// Figures of a store, for metrics.
type Figures struct {
	// Bytes on disk.
	Bytes uint64
	// TornTails is how many torn records this process found and cut off.
	TornTails int
}

// Figures says how large the store is.
func (s *Store) Figures() Figures {
	f := Figures{Bytes: s.db.Metrics().DiskSpaceUsage()}
	if s.torn {
		f.TornTails = 1
	}
	return f
}

// checkRoom refuses a write to a store while the disk that a directory is on has less room than the reserve. Where nobody says how much there
// is, it is not asked for.
func checkRoom(on vfs.FS, store, dir string, reserve int64) error {
	if reserve <= 0 {
		return nil
	}
	usage, err := on.GetDiskUsage(dir)
	if err != nil || usage.AvailBytes >= uint64(reserve) {
		return nil
	}
	return faultf(ErrFull, nil, "write to store %s: %d bytes are free on its disk, and %d are kept in reserve; make room there", store, usage.AvailBytes, reserve)
}

// strictFS is the disk as pebble shall use it.
type strictFS struct{ vfs.FS }

// ReuseForWrite makes a new file: behind a torn record in an old log stand old bytes, and then it cannot be told from a damaged one.
func (f strictFS) ReuseForWrite(oldname, newname string, category vfs.DiskWriteCategory) (vfs.File, error) {
	if err := f.Remove(oldname); err != nil {
		return nil, err
	}
	return f.Create(newname, category)
}

// Create makes a file. A marker says which of the other files count; after a power failure it may be there without the file that it names,
// unless that one's entry in the directory is on disk before.
func (f strictFS) Create(name string, category vfs.DiskWriteCategory) (vfs.File, error) {
	if strings.HasPrefix(f.PathBase(name), "marker.") {
		if err := syncDir(f.FS, f.PathDir(name)); err != nil {
			return nil, err
		}
	}
	return f.FS.Create(name, category)
}

func syncDir(on vfs.FS, dir string) error {
	file, err := on.OpenDir(dir)
	if err != nil {
		return err
	}
	return joinClose(file.Sync(), file)
}
