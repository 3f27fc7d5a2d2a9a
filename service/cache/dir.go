package cache

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
	"sync"
)

// Errors that callers tell apart.
var (
	// ErrSpoilt is a segment that is missing, damaged, or another one than was asked for.
	ErrSpoilt = errors.New("the segment cannot be used")
	// ErrBudget says that the directory has no room left for more.
	ErrBudget = errors.New("the cache directory is as full as it may be (--cache-bytes)")
)

// Suffixes of the files in a cache directory.
const (
	segmentSuffix  = ".seg"
	writingSuffix  = ".tmp"
	spoiltSuffix   = ".bad"
	rescanAfter    = 64 << 20
	maxNameBytes   = 200
	maxKeyBytes    = 256
	maxSourceBytes = 256
)

// names are those that Pecan gives. Other files in the directory are left alone.
var names = regexp.MustCompile(`^[0-9a-z]{1,128}-[0-9]{1,10}-[0-9]{1,20}-[0-9]{1,20}-[0-9a-z]{1,32}\.(seg|tmp|bad)$`)

// Name makes the name of a segment. Lease, worker, and the number of the worker's run keep two runs of a stream apart, which may write at
// the same time.
func Name(key string, stream uint32, lease, run uint64, worker string) string {
	return fmt.Sprintf("%s-%d-%d-%d-%s%s", key, stream, lease, run, worker, segmentSuffix)
}

// ValidName tells whether a name is one that Name gives, or one that a file has before or after that.
func ValidName(name string) bool { return len(name) <= maxNameBytes && names.MatchString(name) }

// Final gives the name that a file has once it is whole, for one that may be on its way there.
func Final(name string) string {
	if rest, writing := strings.CutSuffix(name, writingSuffix); writing {
		return rest + segmentSuffix
	}
	return name
}

// Dir is a directory of segments. Several processes may use one at the same time.
type Dir struct {
	fs     FileSystem
	budget int64

	mu sync.Mutex
	// used is what all files have, as far as this process knows; since are the bytes it wrote after it last looked.
	used, since int64
	looked      bool
}

// New makes a Dir over a file system; budget 0 has no bound.
func New(fs FileSystem, budget int64) *Dir { return &Dir{fs: fs, budget: budget} }

// List gives the names of all files that are Pecan's.
func (d *Dir) List() ([]string, error) {
	all, err := d.fs.List()
	if err != nil {
		return nil, fmt.Errorf("list the cache directory: %w", err)
	}
	var out []string
	for _, file := range all {
		if ValidName(file.Name) {
			out = append(out, file.Name)
		}
	}
	return out, nil
}

// Remove deletes a file. One that is not there is no error.
func (d *Dir) Remove(name string) error {
	if !ValidName(name) {
		return fmt.Errorf("remove %q from the cache: no name of a segment", name)
	}
	d.mu.Lock()
	d.looked = false
	d.mu.Unlock()
	return d.fs.Remove(name)
}

// Quarantine takes a spoilt segment out of use. It stays for whoever wants to look at it, until it is collected.
func (d *Dir) Quarantine(name string) error {
	if !ValidName(name) {
		return fmt.Errorf("quarantine %q: no name of a segment", name)
	}
	return d.fs.Rename(name, strings.TrimSuffix(name, segmentSuffix)+spoiltSuffix)
}

// reserve takes room for bytes that are about to be written.
func (d *Dir) reserve(bytes int64) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.budget <= 0 {
		return nil
	}
	if !d.looked || d.since > rescanAfter {
		all, err := d.fs.List()
		if err != nil {
			return fmt.Errorf("list the cache directory: %w", err)
		}
		d.used, d.since, d.looked = 0, 0, true
		for _, file := range all {
			d.used += file.Size
		}
	}
	if d.used+bytes > d.budget {
		// Room may have been made since.
		d.looked = false
		return ErrBudget
	}
	d.used += bytes
	d.since += bytes
	return nil
}
