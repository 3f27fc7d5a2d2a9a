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
	// markSlot is a page for each of the two slots, so that a torn write spoils one of them only.
	markSlot = 4096
)

// mark is the file beside the database that says how far the acknowledged records reach. Pebble takes every damage of its
// newest log for the end of that log; whoever knows how much was acknowledged can tell damage from a torn last write.
//
// It is written after the records are on disk and before they are acknowledged, so it never says more than there is. It is
// not synced with each record: after a power failure it may say less, and then damage of the last seconds stays unseen.
//
// Layout: two slots of a page, written in turn; each is the magic, a turn number, the number of the last record plus one
// (0: nothing, not even the format mark, is known to be there) and a checksum, little endian.
//
// It also fences: whoever opens the store takes the next turn, and who finds a turn that is not its own writes no more. That matters where
// the lock of the directory is lost, as on a network's file system.
type mark struct {
	file vfs.File
	path string
	turn uint64
	// known is the number of the last acknowledged record plus one.
	known uint64
	// spoilt: one of the slots was neither whole nor empty when they were read.
	spoilt bool
}

// markedKey is in every database that has a mark beside it, so that a mark that was lost is noticed.
var markedKey = []byte("marked")

// openMark opens the mark of a directory, or makes it unless the database says that there was one.
func (s *Store) openMark(opts Options) error {
	path := filepath.Join(s.dir, markName)
	if _, err := opts.FS.Stat(path); errors.Is(err, fs.ErrNotExist) {
		if err := s.inspect(opts, neverMarked(path)); err != nil && !errors.Is(err, pebble.ErrDBDoesNotExist) {
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
	if s.mark.spoilt {
		opts.Log.Warn("one of the two marks of how far records were acknowledged is spoilt: a write was cut off, or the disk damages what it holds. The other one is used", "file", path)
	}
	return nil
}

func neverMarked(path string) func(*Store) error {
	return func(reader *Store) error {
		_, found, err := reader.get(markedKey)
		if err == nil && found {
			err = faultf(ErrDamaged, nil, "open store: %s is missing; nothing was changed. %s", path, wayOut)
		}
		return err
	}
}

func readMark(on vfs.FS, path string) (*mark, error) {
	file, err := on.OpenReadWrite(path, vfs.WriteCategoryUnspecified)
	if err != nil {
		return nil, err
	}
	m := &mark{file: file, path: path}
	if err := m.read(); err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return m, nil
}

// createMark makes the file whole or not at all.
func createMark(on vfs.FS, dir, path string) error {
	content := make([]byte, 2*markSlot)
	copy(content, encodeMark(0, 0))
	if err := writeFile(on, path+".new", content); err != nil {
		return err
	}
	if err := on.Rename(path+".new", path); err != nil {
		return err
	}
	return syncDir(on, dir)
}

func encodeMark(turn, known uint64) []byte {
	b := binary.LittleEndian.AppendUint64([]byte(markMagic), turn)
	b = binary.LittleEndian.AppendUint64(b, known)
	return binary.LittleEndian.AppendUint32(b, crc32.Checksum(b, castagnoli))
}

// read takes the newer of the slots that are whole.
func (m *mark) read() error {
	now, err := m.newest()
	if err == nil && !now.found {
		err = faultf(ErrDamaged, nil, "open store: %s is damaged; nothing was changed. %s", m.path, wayOut)
	}
	if err == nil {
		m.turn, m.known, m.spoilt = now.turn, now.known, now.spoilt
	}
	return err
}

// slots is what the two of them say: the newer one that is whole, and whether one is neither whole nor empty.
type slots struct {
	turn, known   uint64
	found, spoilt bool
}

func (m *mark) newest() (now slots, err error) {
	for i := range int64(2) {
		b := make([]byte, len(encodeMark(0, 0)))
		if _, err := m.file.ReadAt(b, i*markSlot); err != nil && !errors.Is(err, io.EOF) {
			return slots{}, err
		}
		t, k := binary.LittleEndian.Uint64(b[8:]), binary.LittleEndian.Uint64(b[16:])
		switch {
		case string(b) != string(encodeMark(t, k)):
			now.spoilt = now.spoilt || len(bytes.Trim(b, "\x00")) > 0
		case !now.found || t > now.turn:
			now.turn, now.known, now.found = t, k, true
		}
	}
	return now, nil
}

// fence takes the next turn, so that a process that had the store before and does not know that it lost it stops at its next write.
func (m *mark) fence() error {
	if err := m.read(); err != nil {
		return err
	}
	if err := m.put(m.known); err != nil {
		return err
	}
	return m.file.Sync()
}

// check finds out whether another process has taken the store over. It is asked before a write, which would do harm, and again behind it,
// before it is acknowledged.
func (m *mark) check() error {
	now, err := m.newest()
	if err != nil {
		return fmt.Errorf("read %s: %w", markName, err)
	}
	if !now.found || now.turn != m.turn {
		return faultf(ErrInUse, nil, "write to store %s: another dispatcher has opened it, although this one has not ended; this one stops. Was its lock lost, as on a network's file system?", filepath.Dir(m.path))
	}
	return nil
}

// write moves the mark. Files that were removed while they are open take writes without an error, and all of them is lost
// with the process: what would be acknowledged then is not durable.
func (m *mark) write(known uint64) error {
	info, err := m.file.Stat()
	if err != nil {
		return fmt.Errorf("look at %s: %w", markName, err)
	}
	if stat, ok := info.Sys().(*syscall.Stat_t); ok && stat.Nlink == 0 {
		return fmt.Errorf("%s was removed while the store is open, and probably the directory with it", markName)
	}
	if err := m.check(); err != nil {
		return err
	}
	return m.put(known)
}

func (m *mark) put(known uint64) error {
	if _, err := m.file.WriteAt(encodeMark(m.turn+1, known), int64((m.turn+1)%2)*markSlot); err != nil {
		return fmt.Errorf("write %s: %w", markName, err)
	}
	m.turn, m.known = m.turn+1, known
	return nil
}

// startMark makes a store that was opened one whose mark counts: from here on it is damaged when its format is gone.
func (s *Store) startMark() error {
	if _, found, err := s.get(markedKey); err != nil {
		return err
	} else if !found {
		if err := s.db.Set(markedKey, []byte{1}, pebble.Sync); err != nil {
			return err
		}
	}
	return errors.Join(s.mark.write(s.next), s.mark.file.Sync())
}

// inspect reads an existing database without changing it. Opening it for writing would throw away what follows a
// damaged place of the log, and with it what an expert could still save.
func (s *Store) inspect(opts Options, look func(*Store) error) error {
	reader := &Store{dir: s.dir, next: 1, failed: make(chan struct{})}
	cache := pebble.NewCache(cacheBytes)
	defer cache.Unref()
	// Damage comes out of what is read, which says what it was read for.
	log := &pebbleLog{log: opts.Log, fatal: s.fail, damage: func(string) {}}
	var err error
	reader.db, err = pebble.Open(s.dir, &pebble.Options{
		FS: opts.FS, Lock: s.lock, Cache: cache, MemTableSize: tableBytes, ReadOnly: true,
		Logger: log, LoggerAndTracer: nil, EventListener: log.listener(),
	})
	if err != nil {
		return explainDatabase(s.dir, err)
	}
	return errors.Join(look(reader), reader.db.Close())
}

// verify compares what can be read with the mark, and looks at how the newest log ends.
func (s *Store) verify(opts Options) error {
	tail, rest, err := readTail(opts.FS, s.dir)
	if err != nil {
		return explainOpen(s.dir, err)
	}
	if s.mark.known > 0 {
		if err := s.inspect(opts, func(reader *Store) error { return reader.compare(s.mark.known, tail) }); err != nil {
			return err
		}
	}
	if tail.Wrong != "" {
		return faultf(ErrDamaged, nil, "open store %s: %s: %s; nothing was changed. %s. pecanctl store inspect %s shows what can be read of it",
			s.dir, tail.Log, tail.Wrong, wayOut, s.dir)
	}
	if tail.Torn {
		s.cutTorn(opts, tail, rest)
	}
	return nil
}

// compare finds out whether records that were acknowledged are missing.
func (s *Store) compare(known uint64, tail Tail) error {
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
	if !found || last+1 < known {
		return faultf(ErrDamaged, nil, "open store %s: records up to %d were acknowledged, but the last that can be read is %d: %s; nothing was changed. %s. pecanctl store inspect %s shows what can be read of it",
			s.dir, known-1, last, suspect(tail), wayOut, s.dir)
	}
	return nil
}

// suspect names the newest log: what is missing was in it.
func suspect(tail Tail) string {
	if tail.Log == "" {
		return "its log (NUMBER.log) is missing"
	}
	return fmt.Sprintf("%s is damaged at offset %d, cut short there, or not the last log", tail.Log, tail.End)
}

// tornName is the file that keeps what was cut off last, for who wants to know what it was.
const tornName = "PECAN-TORN"

// cutTorn keeps a copy of a record that was cut off while it was written. Pebble leaves it out; nobody was told of it.
func (s *Store) cutTorn(opts Options, tail Tail, rest []byte) {
	s.torn = true
	path := filepath.Join(s.dir, tornName)
	err := writeFile(opts.FS, path, rest)
	opts.Log.Warn("the last write was cut off before it was acknowledged, and is left out", "log", tail.Log, "offset", tail.End, "bytes", len(rest), "copy", path, "copy_error", err)
}

func writeFile(on vfs.FS, path string, content []byte) error {
	file, err := on.Create(path, vfs.WriteCategoryUnspecified)
	if err != nil {
		return err
	}
	_, err = file.Write(content)
	if err == nil {
		err = file.Sync()
	}
	return joinClose(err, file)
}
