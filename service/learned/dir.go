package learned

import (
	"cmp"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"

	"google.golang.org/protobuf/proto"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/internal/safedir"
)

const (
	// maxFile bounds a file, maxTotal all files of a directory, in bytes. A process counts them again after it has written
	// countAfter bytes, so each process may exceed the bound by countAfter bytes.
	maxFile    = 4 << 20
	maxTotal   = 64 << 20
	countAfter = 1 << 20
	// maxLogged bounds the files of which a problem is logged.
	maxLogged = 100

	suffix    = ".learned"
	temporary = ".tmp"
)

// errTooLarge is the error for what has no room in a file.
var errTooLarge = errors.New("the file would be too large")

// fingerprints is the form of the fingerprints that have files.
var fingerprints = regexp.MustCompile(`^[0-9a-f]{16,128}$`)

// Dir is a directory of files. Its methods may be called concurrently.
type Dir struct {
	root  *os.Root
	path  string
	check func(*pecanv1.Learned) error
	log   *slog.Logger
	most  int64

	// mu guards the fields below. logged has the files of which a problem was logged.
	mu     sync.Mutex
	logged map[string]bool
	// uncounted is the size of what was written since the files were counted; counts is how often that was.
	uncounted int64
	counts    int
}

// Open opens a directory for this user, and creates it. Files count as damaged if check refuses what they say.
func Open(path string, check func(*pecanv1.Learned) error, log *slog.Logger) (*Dir, error) {
	if err := os.MkdirAll(path, 0o700); err != nil {
		return nil, err
	}
	root, err := safedir.Open(path)
	if err != nil {
		return nil, err
	}
	return &Dir{root: root, path: path, check: check, log: log, most: maxTotal, logged: map[string]bool{}, uncounted: countAfter}, nil
}

// Close ends the use of the directory.
func (d *Dir) Close() error { return d.root.Close() }

// Load returns what is kept of a graph; nil if there is nothing that this version can read.
func (d *Dir) Load(fingerprint string) *pecanv1.Learned {
	if !fingerprints.MatchString(fingerprint) {
		return nil
	}
	found, err := d.read(fingerprint)
	if err != nil {
		if !errors.Is(err, fs.ErrNotExist) {
			d.ignore(fingerprint, err)
		}
		return nil
	}
	return found
}

// Save keeps what is known of a graph, with what its file says besides. It leaves the file of a later version alone. It
// reports whether there is nothing left to keep. Sync ends a number of calls.
func (d *Dir) Save(fingerprint string, known *pecanv1.Learned) bool {
	if !fingerprints.MatchString(fingerprint) {
		return true
	}
	found, err := d.read(fingerprint)
	if errors.Is(err, errNewer) {
		d.ignore(fingerprint, err)
		return true
	}
	merged := pecanv1.MergeLearned(known, found)
	if found != nil && proto.Equal(merged, found) {
		return true
	}
	if err := d.write(fingerprint, merged); err != nil {
		d.failed(err)
		return errors.Is(err, errTooLarge)
	}
	return true
}

// Sync makes the names of saved files durable, and removes the oldest files above the bound.
func (d *Dir) Sync() {
	d.mu.Lock()
	count := d.uncounted >= countAfter
	if count {
		d.uncounted, d.counts = 0, d.counts+1
	}
	d.mu.Unlock()
	err := safedir.Sync(d.root, ".")
	if count {
		err = errors.Join(err, d.trim())
	}
	if err != nil {
		d.failed(err)
	}
}

// failed logs, once, that a file could not be written.
func (d *Dir) failed(err error) {
	d.warnOnce("", "what was learned from jobs could not be written; trying again", "directory", d.path, "error", err)
}

// ignore logs, once, that the file of a graph is not used.
func (d *Dir) ignore(fingerprint string, why error) {
	d.warnOnce(fingerprint, "what was learned from earlier jobs about a dataset is not used", "file", fingerprint+suffix, "directory", d.path, "why", why)
}

// warnOnce logs a problem once for each key.
func (d *Dir) warnOnce(key, text string, args ...any) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.logged[key] && len(d.logged) < maxLogged {
		d.logged[key] = true
		d.log.Warn(text, args...)
	}
}

// read returns what the file of a graph says of it.
func (d *Dir) read(fingerprint string) (*pecanv1.Learned, error) {
	file, size, err := safedir.OpenFile(d.root, fingerprint+suffix)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	if size > maxFile {
		return nil, fmt.Errorf("%w: it has %d bytes, and at most %d are possible", errDamaged, size, maxFile)
	}
	data, err := io.ReadAll(io.LimitReader(file, maxFile))
	if err != nil {
		return nil, err
	}
	found, err := Parse(data)
	if err != nil {
		return nil, err
	}
	found = found.Of(fingerprint)
	if err := d.check(found); err != nil {
		return nil, fmt.Errorf("%w: %w", errDamaged, err)
	}
	return found, nil
}

func (d *Dir) write(fingerprint string, l *pecanv1.Learned) error {
	data, err := Format(l)
	if err != nil {
		return err
	}
	if len(data) > maxFile {
		return fmt.Errorf("%w: it has %d bytes, and at most %d are kept", errTooLarge, len(data), maxFile)
	}
	d.mu.Lock()
	d.uncounted += int64(len(data))
	d.mu.Unlock()
	return safedir.Replace(d.root, fingerprint+suffix, rand.Text()+temporary, data)
}

// trim removes the files that were written first, until all have at most d.most bytes together. Files that a dead
// process left behind are among them.
func (d *Dir) trim() error {
	entries, err := fs.ReadDir(d.root.FS(), ".")
	if err != nil {
		return err
	}
	var files []fs.FileInfo
	total := int64(0)
	for _, entry := range entries {
		if !strings.HasSuffix(entry.Name(), suffix) && !strings.HasSuffix(entry.Name(), temporary) {
			continue
		}
		// Another process may have removed or replaced it.
		if info, err := entry.Info(); err == nil && info.Mode().IsRegular() {
			files = append(files, info)
			total += info.Size()
		}
	}
	slices.SortFunc(files, func(a, b fs.FileInfo) int {
		return cmp.Or(a.ModTime().Compare(b.ModTime()), cmp.Compare(a.Name(), b.Name()))
	})
	for _, file := range files {
		if total <= d.most {
			return nil
		}
		if err := safedir.Remove(d.root, file.Name()); err != nil {
			return err
		}
		total -= file.Size()
	}
	return nil
}
