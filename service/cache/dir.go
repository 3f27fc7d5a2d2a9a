package cache

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
	"sync"
	"time"
)

// The errors behind the texts that callers get. Tests tell them apart.
var (
	// errInvalid is the error for a segment that is missing, damaged, or not the requested one.
	errInvalid = errors.New("the segment cannot be used")
	// errBudget is the error for a write that would exceed the budget of the directory.
	errBudget = errors.New("the cache directory has reached its limit (--cache-bytes)")
)

// Suffixes of the files in a cache directory. The dispatcher's core also knows writingSuffix, as partialSuffix. Files are counted again
// after rescanAfter bytes. While the directory is full, they are counted again after fullPause.
const (
	segmentSuffix  = ".seg"
	writingSuffix  = ".tmp"
	invalidSuffix  = ".bad"
	rescanAfter    = 64 << 20
	fullPause      = time.Second
	maxNameBytes   = 200
	maxKeyBytes    = 256
	maxSourceBytes = 256
)

// names matches the names of Pecan's files. Pecan leaves other files in the directory alone. The cluster is the first group. Its id may
// contain a hyphen.
var names = regexp.MustCompile(`^([0-9a-z]{1,32}(?:-[0-9a-z]{1,32})?)-[0-9a-z]{1,128}-[0-9]{1,10}-[0-9]{1,20}-[0-9]{1,20}-[0-9a-z]{1,32}\.(?:seg|tmp|bad)$`)

// oldNames matches the names that files had before names had the cluster. Nothing reads such files; only RemoveOld deletes them.
var oldNames = regexp.MustCompile(`^[0-9a-z]{1,128}-[0-9]{1,10}-[0-9]{1,20}-[0-9]{1,20}-[0-9a-z]{1,32}\.(?:seg|tmp|bad)$`)

// Name returns the name of a segment. number counts the segments that the worker process has begun. Several clusters may use one
// directory, and two runs may write a part at the same time. The cluster, the lease, the worker and the number make their names different.
func Name(cluster, key string, part uint32, lease, number uint64, worker string) string {
	return fmt.Sprintf("%s-%s-%d-%d-%d-%s%s", cluster, key, part, lease, number, worker, segmentSuffix)
}

// ClusterOf returns the cluster that a name from Name, or its temporary or quarantined form, belongs to. It returns "" for other names.
func ClusterOf(name string) string {
	if found := names.FindStringSubmatch(name); found != nil && len(name) <= maxNameBytes {
		return found[1]
	}
	return ""
}

// ValidName returns whether a name is from Name, or the temporary or quarantined form of such a name.
func ValidName(name string) bool { return ClusterOf(name) != "" }

// Final returns the final name of a segment for its temporary name. It returns other names unchanged.
func Final(name string) string {
	if rest, writing := strings.CutSuffix(name, writingSuffix); writing {
		return rest + segmentSuffix
	}
	return name
}

// Dir is a directory of segments. Several processes may use one at the same time.
type Dir struct {
	fs     *patience
	budget int64
	limit  limit
	// buffers are those that no Writer has.
	buffers sync.Pool

	mu sync.Mutex
	// used is the size of all files: the last scan, at the time scannedAt, plus this process's later writes (since). scanned is false if
	// the next reservation must scan the directory.
	used, since int64
	scanned     bool
	scannedAt   time.Time

	// failing is held while the directory is listed because of a file that cannot be read. listed is when that last succeeded.
	failing sync.Mutex
	listed  time.Time
}

// New returns a Dir over a file system. A budget of 0 sets no bound.
func New(fs FileSystem, budget int64) *Dir { return Patient(fs, budget, mostWait) }

// Patient is New with another bound of the time for which a call of the file system is waited for.
func Patient(fs FileSystem, budget int64, most time.Duration) *Dir {
	return &Dir{fs: &patience{fs: fs, wait: most}, budget: budget}
}

// List returns the names of a cluster's files. Files of other clusters are not this cluster's concern, and neither are those that
// another user gave such a name.
func (d *Dir) List(cluster string) ([]string, error) {
	all, err := d.fs.List()
	if err != nil {
		return nil, fmt.Errorf("list the cache directory: %w", err)
	}
	var out []string
	for _, file := range all {
		if owner := ClusterOf(file.Name); owner != "" && owner == cluster && !file.Foreign {
			out = append(out, file.Name)
		}
	}
	return out, nil
}

// Usage is a number of files and the sum of their sizes.
type Usage struct {
	Files int
	Bytes int64
}

func (u Usage) with(file Info) Usage { return Usage{u.Files + 1, u.Bytes + file.Size} }

// Clusters returns what each cluster has in the directory, and what is there under old names, which have no cluster.
func (d *Dir) Clusters() (clusters map[string]Usage, old Usage, err error) {
	all, err := d.fs.List()
	if err != nil {
		return nil, old, fmt.Errorf("list the cache directory: %w", err)
	}
	clusters = map[string]Usage{}
	for _, file := range all {
		if owner := ClusterOf(file.Name); owner != "" {
			clusters[owner] = clusters[owner].with(file)
		} else if oldNames.MatchString(file.Name) {
			old = old.with(file)
		}
	}
	return clusters, old, nil
}

// RemoveOld deletes the files with old names, and returns what they were.
func (d *Dir) RemoveOld() (removed Usage, err error) {
	all, err := d.fs.List()
	if err != nil {
		return removed, fmt.Errorf("list the cache directory: %w", err)
	}
	d.mu.Lock()
	d.scanned = false
	d.mu.Unlock()
	for _, file := range all {
		if !oldNames.MatchString(file.Name) {
			continue
		}
		if failed := d.fs.Remove(file.Name); failed != nil {
			err = errors.Join(err, failed)
			continue
		}
		removed = removed.with(file)
	}
	return removed, err
}

// Call makes a call that FileSystem does not have, and waits for it as long as for opening a file.
func (d *Dir) Call(what string, call func() error) error { return d.fs.only(d.fs.wait, what, call) }

// Remove deletes a file. A missing file is no error.
func (d *Dir) Remove(name string) error {
	if !ValidName(name) {
		return fmt.Errorf("remove %q from the cache: not the name of a segment", name)
	}
	d.mu.Lock()
	d.scanned = false
	d.mu.Unlock()
	return d.fs.Remove(name)
}

// Quarantine renames an invalid segment so that nobody reads it. The file stays for inspection until it is collected.
func (d *Dir) Quarantine(name string) error {
	if !ValidName(name) {
		return fmt.Errorf("quarantine %q: not the name of a segment", name)
	}
	return d.fs.Rename(name, strings.TrimSuffix(name, segmentSuffix)+invalidSuffix)
}

// Room returns how many bytes may still be written below the budget. bounded is false without a budget.
func (d *Dir) Room() (bytes int64, bounded bool, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.budget <= 0 {
		return 0, false, nil
	}
	if err := d.scan(); err != nil {
		return 0, true, err
	}
	return max(d.budget-d.used, 0), true, nil
}

// scan counts the bytes of all files. mu is held.
func (d *Dir) scan() error {
	all, err := d.fs.List()
	if err != nil {
		return fmt.Errorf("list the cache directory: %w", err)
	}
	d.used, d.since, d.scanned, d.scannedAt = 0, 0, true, time.Now()
	for _, file := range all {
		d.used += file.Size
	}
	return nil
}

// reserve counts bytes that are about to be written, or returns errBudget.
func (d *Dir) reserve(bytes int64) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.budget <= 0 {
		return nil
	}
	// Another process may have freed space.
	full := d.used+bytes > d.budget && time.Since(d.scannedAt) >= fullPause
	if !d.scanned || d.since > rescanAfter || full {
		if err := d.scan(); err != nil {
			return err
		}
	}
	if d.used+bytes > d.budget {
		return errBudget
	}
	d.used += bytes
	d.since += bytes
	return nil
}
