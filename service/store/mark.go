package store

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"path/filepath"
	"syscall"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
)

const (
	markName  = "PECAN-MARK"
	markMagic = "PCNMARK1"
	// markSlotBytes is the size of a slot. Each of the two slots has its own page, so a torn write damages only one.
	markSlotBytes = 4096
)

// mark is the file PECAN-MARK. It has the number of acknowledged records. Pebble treats any damage in its newest log as
// the end of that log. The number of acknowledged records distinguishes such damage from a torn last write.
//
// The store writes the mark after the records are on disk and before it acknowledges them. So the mark never exceeds
// the records on disk. The store does not sync the mark with each record. After a power failure the mark may be too
// low, and damage in the records of the last seconds is not detected.
//
// Layout: two slots of one page each, written alternately. A slot has the magic, a sequence number, the number of the
// next record and a checksum, little endian. A next record of 0 means that nothing was acknowledged, not even the format
// version.
//
// The mark is also a fencing token. Each opening writes the next sequence number. A process that finds a sequence number
// of another process stops writing. That matters if the lock of the directory is lost, as on a network file system.
type mark struct {
	file     vfs.File
	path     string
	sequence uint64
	// next is the number of the last acknowledged record plus one.
	next uint64
	// invalidSlot is set if a slot had an invalid content when the file was read.
	invalidSlot bool
}

// markedKey is a key of every database that has a mark. It makes the loss of the file PECAN-MARK detectable.
var markedKey = []byte("marked")

// openMark opens the mark of a directory. It creates the mark if there is none and the database never had one.
func (s *Store) openMark(opts Options) error {
	path := filepath.Join(s.dir, markName)
	if _, err := opts.FS.Stat(path); errors.Is(err, fs.ErrNotExist) {
		if err := s.inspect(opts, requireUnmarked(path)); err != nil && !errors.Is(err, pebble.ErrDBDoesNotExist) {
			return err
		}
		if err := createMark(opts.FS, s.dir, path); err != nil {
			return explainOpen(s.dir, err)
		}
	}
	var err error
	if s.mark, err = readMark(opts.FS, path); err != nil {
		return explainOpen(s.dir, err)
	}
	if s.mark.invalidSlot {
		opts.Log.Warn("one of the two slots of the mark is invalid: a write was torn, or the disk damages data. The store uses the other slot", "file", path)
	}
	return nil
}

func requireUnmarked(path string) func(*Store) error {
	return func(reader *Store) error {
		_, found, err := reader.get(markedKey)
		if err == nil && found {
			err = faultf(ErrDamaged, nil, "open store: %s is missing; nothing was changed. %s", path, restoreHint)
		}
		return err
	}
}

func readMark(fsys vfs.FS, path string) (*mark, error) {
	file, err := fsys.OpenReadWrite(path, vfs.WriteCategoryUnspecified)
	if err != nil {
		return nil, err
	}
	m := &mark{file: file, path: path}
	if err := m.read(); err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return m, nil
}

// createMark creates the file atomically.
func createMark(fsys vfs.FS, dir, path string) error {
	content := make([]byte, 2*markSlotBytes)
	copy(content, encodeMark(0, 0))
	if err := writeFile(fsys, path+".new", content); err != nil {
		return err
	}
	if err := fsys.Rename(path+".new", path); err != nil {
		return err
	}
	return syncDir(fsys, dir)
}

func encodeMark(sequence, next uint64) []byte {
	b := binary.LittleEndian.AppendUint64([]byte(markMagic), sequence)
	b = binary.LittleEndian.AppendUint64(b, next)
	return binary.LittleEndian.AppendUint32(b, crc32.Checksum(b, castagnoli))
}

// read sets the fields from the newest valid slot.
func (m *mark) read() error {
	now, err := m.newest()
	if err == nil && !now.found {
		err = faultf(ErrDamaged, nil, "open store: %s is damaged; nothing was changed. %s", m.path, restoreHint)
	}
	if err == nil {
		m.sequence, m.next, m.invalidSlot = now.sequence, now.next, now.invalidSlot
	}
	return err
}

// slots is the content of the newest valid slot. found is false if no slot is valid. invalidSlot is set if a slot is
// neither valid nor empty.
type slots struct {
	sequence, next     uint64
	found, invalidSlot bool
}

func (m *mark) newest() (now slots, err error) {
	for i := range int64(2) {
		b := make([]byte, len(encodeMark(0, 0)))
		if _, err := m.file.ReadAt(b, i*markSlotBytes); err != nil && !errors.Is(err, io.EOF) {
			return slots{}, err
		}
		sequence, next := binary.LittleEndian.Uint64(b[8:]), binary.LittleEndian.Uint64(b[16:])
		switch {
		case string(b) != string(encodeMark(sequence, next)):
			now.invalidSlot = now.invalidSlot || len(bytes.Trim(b, "\x00")) > 0
		case !now.found || sequence > now.sequence:
			now.sequence, now.next, now.found = sequence, next, true
		}
	}
	return now, nil
}

// fence writes the next sequence number. A previous owner that has lost its lock without noticing stops at its next
// write.
func (m *mark) fence() error {
	if err := m.read(); err != nil {
		return err
	}
	if err := m.put(m.next); err != nil {
		return err
	}
	return m.file.Sync()
}

// check returns ErrInUse if another process has opened the store. The store calls check before each write,
// because a write could damage the other process's store, and again between the write and its acknowledgement.
func (m *mark) check() error {
	now, err := m.newest()
	if err != nil {
		return fmt.Errorf("read %s: %w", markName, err)
	}
	if !now.found || now.sequence != m.sequence {
		return faultf(ErrInUse, nil, "write to store %s: another dispatcher has opened it while this dispatcher is running; this dispatcher stops. Check whether the file system supports locks: a network file system may lose them", filepath.Dir(m.path))
	}
	return nil
}

// write sets the number of the next record. It fails if the file was removed. The system accepts writes to a removed
// open file without an error. The data of such writes is lost when the process ends, and must not be acknowledged.
func (m *mark) write(next uint64) error {
	info, err := m.file.Stat()
	if err != nil {
		return fmt.Errorf("stat %s: %w", markName, err)
	}
	if stat, ok := info.Sys().(*syscall.Stat_t); ok && stat.Nlink == 0 {
		return fmt.Errorf("%s was removed while the store was open; the directory was probably removed too", markName)
	}
	if err := m.check(); err != nil {
		return err
	}
	return m.put(next)
}

func (m *mark) put(next uint64) error {
	if _, err := m.file.WriteAt(encodeMark(m.sequence+1, next), int64((m.sequence+1)%2)*markSlotBytes); err != nil {
		return fmt.Errorf("write %s: %w", markName, err)
	}
	m.sequence, m.next = m.sequence+1, next
	return nil
}

// activateMark records in the database that it has a mark, and writes the mark. From then on a missing mark or a missing
// format version is damage.
func (s *Store) activateMark() error {
	if _, found, err := s.get(markedKey); err != nil {
		return err
	} else if !found {
		if err := s.db.Set(markedKey, []byte{1}, pebble.Sync); err != nil {
			return err
		}
	}
	return errors.Join(s.mark.write(s.next), s.mark.file.Sync())
}

// inspect opens an existing database for reading only, and calls read. Opening it for writing would discard everything
// after a damaged place in the log, which an expert might still recover.
func (s *Store) inspect(opts Options, read func(*Store) error) error {
	reader := &Store{dir: s.dir, next: 1, failed: make(chan struct{})}
	cache := pebble.NewCache(cacheBytes)
	defer cache.Unref()
	// Damage is not reported here: the read that meets it returns an error with more context.
	log := &pebbleLog{log: opts.Log, fatal: s.fail, damage: func(string) {}}
	var err error
	reader.db, err = pebble.Open(s.dir, &pebble.Options{
		FS: opts.FS, Lock: s.lock, Cache: cache, MemTableSize: tableBytes, ReadOnly: true,
		Logger: log, LoggerAndTracer: nil, EventListener: log.listener(),
	})
	if err != nil {
		return explainDatabase(s.dir, err)
	}
	return errors.Join(read(reader), reader.db.Close())
}

// verify compares the readable records with the mark, and examines the end of the newest log.
func (s *Store) verify(opts Options) error {
	tail, rest, err := readTail(opts.FS, s.dir)
	if err != nil {
		return explainOpen(s.dir, err)
	}
	if s.mark.next > 0 {
		if err := s.inspect(opts, func(reader *Store) error { return reader.compare(s.mark.next, tail) }); err != nil {
			return err
		}
	}
	if tail.Damage != "" {
		return faultf(ErrDamaged, nil, "open store %s: %s: %s; nothing was changed. %s. pecanctl store inspect %s shows the readable records",
			s.dir, tail.Log, tail.Damage, restoreHint, s.dir)
	}
	if tail.Torn {
		s.saveTorn(opts, tail, rest)
	}
	return nil
}

// compare returns ErrDamaged if acknowledged records are missing. next is the number of the next record in the mark.
func (s *Store) compare(next uint64, tail Tail) error {
	_, found, err := s.get([]byte("format"))
	if err != nil {
		return err
	}
	header, _, err := s.readHeader([]byte("snapshot"))
	if err != nil {
		return err
	}
	last := header.records
	if err := s.eachRecord(last, func(number uint64, _ func() []byte) error { last = number; return nil }); err != nil {
		return err
	}
	if !found || last+1 < next {
		return faultf(ErrDamaged, nil, "open store %s: records up to %d were acknowledged, but the last readable record is %d: %s; nothing was changed. %s. pecanctl store inspect %s shows the readable records",
			s.dir, next-1, last, describeLog(tail), restoreHint, s.dir)
	}
	return nil
}

// describeLog describes the newest log, which must have had the missing records.
func describeLog(tail Tail) string {
	if tail.Log == "" {
		return "its log (NUMBER.log) is missing"
	}
	return fmt.Sprintf("%s is damaged or truncated at offset %d, or it is not the newest log", tail.Log, tail.End)
}

// tornName is the file with a copy of the last torn write, for debugging.
const tornName = "PECAN-TORN"

// saveTorn copies a torn write to a file. Pebble ignores the torn write, which was never acknowledged.
func (s *Store) saveTorn(opts Options, tail Tail, rest []byte) {
	s.torn = true
	path := filepath.Join(s.dir, tornName)
	err := writeFile(opts.FS, path, rest)
	opts.Log.Warn("the last write is torn and was never acknowledged; the store ignores it", "log", tail.Log, "offset", tail.End, "bytes", len(rest), "copy", path, "copy_error", err)
}

func writeFile(fsys vfs.FS, path string, content []byte) error {
	file, err := fsys.Create(path, vfs.WriteCategoryUnspecified)
	if err != nil {
		return err
	}
	_, err = file.Write(content)
	if err == nil {
		err = file.Sync()
	}
	return joinClose(err, file)
}
