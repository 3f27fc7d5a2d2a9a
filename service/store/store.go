package store

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
)

// Format is the version of the layout that the package documentation describes, and of the records in it. A store of an
// older version gets this version when it is opened.
const Format = 2

const (
	formatName = "pecan-store/"
	// chunkBytes limits the size of a value and of a batch.
	chunkBytes = 1 << 20
	cacheBytes = 4 << 20
	tableBytes = 4 << 20
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Options configure a store.
type Options struct {
	// Dir returns the directory. Open creates it with mode 0700 if its parent exists.
	Dir string
	// FS replaces the file system in tests; nil means the file system of the host.
	FS vfs.FS
	// Log receives pebble's errors; nil discards them.
	Log *slog.Logger
	// Reserve is the number of bytes that must be free on the disk before a write starts; 0 disables the check. The
	// reserve leaves space for pebble's background work. If the disk really is full, that work fails and the store with it.
	Reserve int64
}

// Store is a durable store. Several goroutines may call its methods. Appends have the order of their calls.
type Store struct {
	dir     string
	fs      vfs.FS
	db      *pebble.DB
	lock    *pebble.Lock
	mark    *mark
	reserve int64
	// torn is set if this process found a torn write and ignored it.
	torn bool

	mu sync.Mutex
	// next is the number of the next record.
	next uint64

	failOnce sync.Once
	// failed is closed after an error from which pebble cannot continue. failure is set before that.
	failed  chan struct{}
	failure error
}

// Open opens or creates the store of a directory, and locks the directory for this process.
func Open(opts Options) (*Store, error) {
	if opts.Log == nil {
		opts.Log = slog.New(slog.DiscardHandler)
	}
	dir := opts.Dir
	if opts.FS == nil {
		opts.FS = vfs.Default
		var err error
		if dir, err = prepareDir(dir, opts.Reserve); err != nil {
			return nil, err
		}
	} else if err := opts.FS.MkdirAll(dir, 0o700); err != nil {
		return nil, explainOpen(dir, err)
	}
	lock, err := pebble.LockDirectory(dir, opts.FS)
	if err != nil {
		return nil, explainOpen(dir, &lockError{err})
	}
	s := &Store{dir: dir, fs: opts.FS, lock: lock, reserve: opts.Reserve, failed: make(chan struct{}), next: 1}
	if err := s.openMark(opts); err != nil {
		return nil, errors.Join(err, lock.Close())
	}
	if err = s.verify(opts); err == nil {
		err = s.mark.fence()
	}
	if err == nil {
		err = s.open(opts)
	}
	if err != nil {
		return nil, errors.Join(err, s.mark.file.Close(), lock.Close())
	}
	return s, nil
}

// prepareDir creates the directory if it is missing. It creates nothing if the disk is full.
func prepareDir(dir string, reserve int64) (string, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return "", fmt.Errorf("open store: %w", err)
	}
	info, err := os.Stat(dir)
	switch {
	case err == nil && !info.IsDir():
		return "", faultf(ErrNoDirectory, nil, "open store %s: it is not a directory", dir)
	case err == nil:
		return dir, checkFreeSpace(vfs.Default, dir, dir, reserve)
	case !errors.Is(err, os.ErrNotExist):
		return "", explainOpen(dir, err)
	}
	parent := filepath.Dir(dir)
	if _, err := os.Stat(parent); errors.Is(err, os.ErrNotExist) {
		return "", faultf(ErrNoDirectory, err, "open store %s: the parent directory does not exist; create it first", dir)
	}
	if err := checkFreeSpace(vfs.Default, dir, parent, reserve); err != nil {
		return "", err
	}
	switch err := os.Mkdir(dir, 0o700); {
	case errors.Is(err, os.ErrExist):
		return "", faultf(ErrNoDirectory, nil, "open store %s: it is a link to a file that does not exist", dir)
	case err != nil:
		return "", explainOpen(dir, err)
	}
	return dir, nil
}

// open opens pebble's database, and checks that no other process wrote to it meanwhile. If a step fails, it closes the
// database.
func (s *Store) open(opts Options) error {
	cache := pebble.NewCache(cacheBytes)
	defer cache.Unref()
	log := &pebbleLog{log: opts.Log, fatal: s.fail, damage: s.failDamaged}
	var db *pebble.DB
	var refused error
	if err := s.guard(func() error {
		db, refused = pebble.Open(s.dir, &pebble.Options{
			FS: strictFS{opts.FS}, Lock: s.lock, Cache: cache, MemTableSize: tableBytes, FormatMajorVersion: pebble.FormatNewest,
			Logger: log, LoggerAndTracer: nil, EventListener: log.listener(),
		})
		return nil
	}); err != nil {
		return err
	}
	if refused != nil {
		return explainDatabase(s.dir, refused)
	}
	s.db = db
	err := s.checkFormat()
	if err == nil {
		err = s.findNext()
	}
	if err == nil && s.next < s.mark.next {
		err = faultf(ErrInUse, nil, "open store %s: another process wrote to it during the opening; stop that process or choose another --work-dir", s.dir)
	}
	if err == nil {
		err = s.guard(s.activateMark)
	}
	if err == nil {
		return nil
	}
	select {
	case <-s.failed:
		// db.Close would never return, as in Close.
		return err
	default:
		return errors.Join(err, db.Close())
	}
}

// checkFormat checks the format version, and writes it to an empty database.
func (s *Store) checkFormat() error {
	value, found, err := s.get([]byte("format"))
	if err != nil {
		return err
	}
	if !found {
		it, err := s.db.NewIter(nil)
		if err != nil {
			return explainOpen(s.dir, err)
		}
		empty := !it.First()
		if err := it.Close(); err != nil {
			return explainOpen(s.dir, err)
		}
		if !empty {
			return faultf(ErrDamaged, nil, "open store %s: it has data but no format version; it is not a store of Pecan", s.dir)
		}
		return s.setFormat()
	}
	number, ok := strings.CutPrefix(string(value), formatName)
	version, err := strconv.Atoi(number)
	if !ok || err != nil || version < 1 {
		return faultf(ErrDamaged, nil, "open store %s: the format version %.40q is invalid", s.dir, value)
	}
	if version > Format {
		return faultf(ErrNewer, nil, "open store %s: it has format %d, this version of Pecan reads up to %d; use the newer version", s.dir, version, Format)
	}
	if version < Format {
		// An older dispatcher would misread what this one writes.
		return s.setFormat()
	}
	return nil
}

func (s *Store) setFormat() error {
	return s.guard(func() error { return s.db.Set([]byte("format"), []byte(formatName+strconv.Itoa(Format)), pebble.Sync) })
}

// findNext sets the number of the next record.
func (s *Store) findNext() error {
	header, _, err := s.readHeader([]byte("snapshot"))
	if err != nil {
		return err
	}
	s.next = header.records + 1
	it, err := s.records()
	if err != nil {
		return err
	}
	if it.Last() {
		s.next = recordNumber(it.Key()) + 1
	}
	if err := it.Close(); err != nil {
		return explainOpen(s.dir, err)
	}
	return nil
}

func (s *Store) records() (*pebble.Iterator, error) {
	it, err := s.db.NewIter(&pebble.IterOptions{LowerBound: []byte("record/"), UpperBound: []byte("record0")})
	if err != nil {
		return nil, explainOpen(s.dir, err)
	}
	return it, nil
}

// eachRecord calls do with each record after number last. A gap in the numbers is ErrDamaged.
func (s *Store) eachRecord(last uint64, do func(number uint64, data func() []byte) error) error {
	it, err := s.records()
	if err != nil {
		return err
	}
	for ok := it.First(); ok && err == nil; ok = it.Next() {
		number := recordNumber(it.Key())
		if number != last+1 {
			err = faultf(ErrDamaged, nil, "read store %s: record %d follows record %d. %s", s.dir, number, last, restoreHint)
			break
		}
		last = number
		err = do(number, it.Value)
	}
	if closeErr := it.Close(); err == nil && closeErr != nil {
		err = explainOpen(s.dir, closeErr)
	}
	return err
}

func recordKey(number uint64) []byte {
	return binary.BigEndian.AppendUint64([]byte("record/"), number)
}

func recordNumber(key []byte) uint64 {
	if len(key) != len("record/")+8 {
		return 0
	}
	return binary.BigEndian.Uint64(key[len("record/"):])
}

// Dir returns the directory.
func (s *Store) Dir() string { return s.dir }

// Load calls snapshot with the snapshot, if there is one, and then record with every record after it, in order.
func (s *Store) Load(snapshot, record func(data []byte) error) error {
	header, found, err := s.readHeader([]byte("snapshot"))
	if err != nil {
		return err
	}
	last := uint64(0)
	if found {
		data, err := s.readChunks([]byte("snapshot"), header)
		if err != nil {
			return err
		}
		if err := snapshot(data); err != nil {
			return faultf(ErrDamaged, err, "read store %s: the snapshot is invalid", s.dir)
		}
		last = header.records
	}
	return s.eachRecord(last, func(number uint64, data func() []byte) error {
		if err := record(data()); err != nil {
			return faultf(ErrDamaged, err, "read store %s: record %d is invalid", s.dir, number)
		}
		return nil
	})
}

// Append writes records durably, in order and atomically.
func (s *Store) Append(records [][]byte) error {
	if len(records) == 0 {
		return nil
	}
	if err := checkFreeSpace(s.fs, s.dir, s.dir, s.reserve); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	batch := s.db.NewBatch()
	for i, record := range records {
		if err := batch.Set(recordKey(s.next+uint64(i)), record, nil); err != nil {
			return fmt.Errorf("append to store %s: %w", s.dir, err)
		}
	}
	next := s.next + uint64(len(records))
	if err := s.guard(func() error {
		if err := s.mark.check(); err != nil {
			return err
		}
		if err := batch.Commit(syncMode); err != nil {
			return err
		}
		return s.mark.write(next)
	}); err != nil {
		return err
	}
	s.next = next
	return nil
}

// Compact replaces all records so far with a snapshot of the state that they produce.
func (s *Store) Compact(snapshot []byte) error {
	if err := checkFreeSpace(s.fs, s.dir, s.dir, s.reserve); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	batch := s.db.NewBatch()
	header := makeHeader(snapshot)
	header.records = s.next - 1
	err := batch.DeleteRange([]byte("snapshot/"), []byte("snapshot0"), nil)
	for i := 0; err == nil && i < int(header.chunks); i++ {
		err = batch.Set(chunkKey([]byte("snapshot"), i), chunk(snapshot, i), nil)
	}
	if err == nil {
		err = batch.Set([]byte("snapshot"), header.encode(), nil)
	}
	if err == nil {
		err = batch.DeleteRange(recordKey(0), recordKey(s.next), nil)
	}
	if err != nil {
		return fmt.Errorf("compact store %s: %w", s.dir, err)
	}
	return s.guard(func() error {
		if err := s.mark.check(); err != nil {
			return err
		}
		if err := batch.Commit(syncMode); err != nil {
			return err
		}
		return errors.Join(s.mark.check(), s.mark.file.Sync())
	})
}

// Close closes the store and releases the directory.
func (s *Store) Close() error {
	if s.failed != nil {
		select {
		case <-s.failed:
			// db.Close would wait forever for pebble's broken pipeline.
			return s.failure
		default:
		}
	}
	err := errors.Join(s.db.Close(), s.mark.file.Sync(), s.mark.file.Close())
	if lockErr := s.lock.Close(); err == nil {
		err = lockErr
	}
	if err != nil {
		return fmt.Errorf("close store %s: %w", s.dir, err)
	}
	return nil
}
