package store

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
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
type mark struct {
	file vfs.File
	turn uint64
	// known is the number of the last acknowledged record plus one.
	known uint64
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
	m := &mark{file: file}
	if err := m.read(path); err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return m, nil
}

// createMark makes the file whole or not at all.
func createMark(on vfs.FS, dir, path string) error {
	file, err := on.Create(path+".new", vfs.WriteCategoryUnspecified)
	if err != nil {
		return err
	}
	content := make([]byte, 2*markSlot)
	copy(content, encodeMark(0, 0))
	_, err = file.Write(content)
	if err == nil {
		err = file.Sync()
	}
	if err = errors.Join(err, file.Close()); err != nil {
		return err
	}
	if err := on.Rename(path+".new", path); err != nil {
		return err
	}
	parent, err := on.OpenDir(dir)
	if err != nil {
		return err
	}
	return errors.Join(parent.Sync(), parent.Close())
}

func encodeMark(turn, known uint64) []byte {
	b := binary.LittleEndian.AppendUint64([]byte(markMagic), turn)
	b = binary.LittleEndian.AppendUint64(b, known)
	return binary.LittleEndian.AppendUint32(b, crc32.Checksum(b, castagnoli))
}

// read takes the newer of the slots that are whole.
func (m *mark) read(path string) error {
	found := false
	for i := range int64(2) {
		b := make([]byte, len(encodeMark(0, 0)))
		if _, err := m.file.ReadAt(b, i*markSlot); err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		turn, known := binary.LittleEndian.Uint64(b[8:]), binary.LittleEndian.Uint64(b[16:])
		if string(b) == string(encodeMark(turn, known)) && (!found || turn > m.turn) {
			found, m.turn, m.known = true, turn, known
		}
	}
	if !found {
		return faultf(ErrDamaged, nil, "open store: %s is damaged; nothing was changed. %s", path, wayOut)
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

// verify compares what can be read with the mark.
func (s *Store) verify(opts Options) error {
	if s.mark.known == 0 {
		return nil
	}
	return s.inspect(opts, func(reader *Store) error {
		_, found, err := reader.get([]byte("format"))
		if err == nil {
			err = reader.findNext()
		}
		if err == nil && (!found || reader.next < s.mark.known) {
			err = faultf(ErrDamaged, nil, "open store %s: %d records were acknowledged, but only %d can be read: %s; nothing was changed. %s",
				s.dir, s.mark.known-1, reader.next-1, suspects(opts.FS, s.dir), wayOut)
		}
		return err
	})
}

// suspects names the logs: what is missing was in the last of them.
func suspects(on vfs.FS, dir string) string {
	names, err := on.List(dir)
	if err != nil {
		return err.Error()
	}
	names = slices.DeleteFunc(names, func(name string) bool { return !strings.HasSuffix(name, ".log") })
	if len(names) == 0 {
		return "its log (NUMBER.log) is missing"
	}
	slices.Sort(names)
	return filepath.Join(dir, names[len(names)-1]) + " is damaged, cut short, or not the last log"
}
