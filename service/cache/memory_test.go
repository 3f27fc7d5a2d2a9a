package cache

import (
	"bytes"
	"errors"
	"runtime"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// pool counts the blocks in use. A block that is released is overwritten.
type pool struct{ inUse, misuses atomic.Int32 }

type pooledBlock struct {
	pool *pool
	refs atomic.Int32
	data []byte
}

func (p *pool) alloc(bytes int) (Block, error) {
	p.inUse.Add(1)
	b := &pooledBlock{pool: p, data: make([]byte, bytes)}
	b.refs.Store(1)
	return b, nil
}

func (b *pooledBlock) Bytes() []byte { return b.data }

func (b *pooledBlock) Retain() {
	if b.refs.Add(1) < 2 {
		b.pool.misuses.Add(1)
	}
}

func (b *pooledBlock) Release() {
	switch n := b.refs.Add(-1); {
	case n == 0:
		for i := range b.data {
			b.data[i] = 0xEE
		}
		b.pool.inUse.Add(-1)
	case n < 0:
		b.pool.misuses.Add(1)
	}
}

// check fails the test unless so many blocks are in use.
func (p *pool) check(t *testing.T, what string, inUse int32) {
	t.Helper()
	if n, wrong := p.inUse.Load(), p.misuses.Load(); n != inUse || wrong != 0 {
		t.Errorf("%s: %d blocks are in use, want %d; %d misuses", what, n, inUse, wrong)
	}
}

// late is a directory in memory whose reads take a while, and write what they read at their end.
type late struct {
	*memory
	delay time.Duration
}

func (l *late) Open(name string) (Readable, int64, error) {
	file, size, err := l.memory.Open(name)
	return &lateFile{file, l}, size, err
}

type lateFile struct {
	Readable
	from *late
}

func (f *lateFile) ReadAt(data []byte, at int64) (int, error) {
	time.Sleep(f.from.delay)
	return f.Readable.ReadAt(data, at)
}

// Close does nothing: as in a file of the host, a read in progress goes on.
func (f *lateFile) Close() error { return nil }

// Whoever retains the block of a chunk has it unchanged after later reads, and after the reader is closed.
func TestARetainedBlockStays(t *testing.T) {
	for _, compress := range []bool{false, true} {
		d, list := open(t, t.TempDir(), 0), chunks(7, 60)
		var p pool
		r, err := d.Open(write(t, d, testName, testID, list, compress), p.alloc)
		if err != nil {
			t.Fatal(err)
		}
		got := make([]Chunk, len(list))
		var release []func()
		for i := range list {
			if got[i], err = r.Next(); err != nil {
				t.Fatal(err)
			}
			r.Block().Retain()
			release = append(release, r.Block().Release)
		}
		if err := r.Close(); err != nil {
			t.Fatal(err)
		}
		for i := range list {
			if !bytes.Equal(whole(&got[i]), whole(&list[i])) {
				t.Errorf("compress=%v: chunk %d has changed", compress, i)
			}
			release[i]()
		}
		p.check(t, "at the end", 0)
	}
}

// A read that its caller gives up writes into memory that nobody else has.
func TestAReadThatIsGivenUpKeepsItsMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fs, list := &late{memory: newMemory(func(string) error { return nil })}, chunks(7, 12)
		d := New(fs, 0)
		segment, err := attempt(d, list)
		if err != nil {
			t.Fatal(err)
		}
		fs.delay = 2 * mostWait
		var p pool
		if _, err := d.Open(segment, p.alloc); !errors.Is(err, ErrNoAnswer) {
			t.Fatal(err)
		}
		p.check(t, "while the read goes on", 1)
		time.Sleep(2 * fs.delay * time.Duration(len(list)))
		p.check(t, "after the read", 0)
	})
}

// A footer that is longer than what is read of the end at first.
func TestASegmentOfManyBlocks(t *testing.T) {
	d, list := open(t, t.TempDir(), 0), []Chunk(nil)
	for i := range 2 * endBytes / entryBytes {
		list = append(list, Chunk{Count: 1, Flags: uint32(i), Meta: []byte("m"), Payload: [][]byte{{byte(i)}}})
	}
	w, err := d.Create(t.Context(), testName, testID, testDTypes, Uncompressed)
	if err != nil {
		t.Fatal(err)
	}
	for i := range list {
		if err := errors.Join(w.Append(&list[i]), w.flush()); err != nil {
			t.Fatal(err)
		}
	}
	s, err := w.Commit()
	if err != nil {
		t.Fatal(err)
	}
	if n, err := readAll(t, d, s, list); n != len(list) {
		t.Errorf("%d of %d chunks: %v", n, len(list), err)
	}
}

// hesitant is a directory in memory. Its first write of a block takes a minute, and then copies what it was given.
type hesitant struct {
	*memory
	began  atomic.Bool
	copied chan []byte
}

func (h *hesitant) Create(name string) (File, error) {
	file, err := h.memory.Create(name)
	return &hesitantFile{file, h}, err
}

type hesitantFile struct {
	File
	in *hesitant
}

func (f *hesitantFile) Write(data []byte) (int, error) {
	if len(data) < blockBytes || f.in.began.Swap(true) {
		return f.File.Write(data)
	}
	time.Sleep(time.Minute)
	f.in.copied <- bytes.Clone(data)
	return len(data), nil
}

// Close does nothing, because a write goes on.
func (f *hesitantFile) Close() error { return nil }

// A write that is given up goes on with its memory, which no other segment gets.
func TestAWriteThatIsGivenUpKeepsItsMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &hesitant{memory: newMemory(func(string) error { return nil }), copied: make(chan []byte, 1)}
		d := New(h, 0)
		filled := func(value byte) []Chunk {
			return []Chunk{{Count: 1, Payload: [][]byte{bytes.Repeat([]byte{value}, blockBytes)}}}
		}
		if _, err := attempt(d, filled(1)); !errors.Is(err, ErrNoAnswer) {
			t.Fatal(err)
		}
		time.Sleep(2 * restFor * mostWait)
		for range 3 {
			if _, err := attempt(d, filled(2)); err != nil {
				t.Fatal(err)
			}
		}
		if copied := <-h.copied; bytes.Contains(copied, []byte{2, 2, 2}) {
			t.Error("the write has bytes of another segment")
		}
	})
}

// nowhere is a directory that keeps nothing.
type nowhere struct{ *memory }

func (nowhere) Create(string) (File, error) { return nowhereFile{}, nil }
func (nowhere) Rename(string, string) error { return nil }

type nowhereFile struct{}

func (nowhereFile) Write(data []byte) (int, error) { return len(data), nil }
func (nowhereFile) Sync() error                    { return nil }
func (nowhereFile) Close() error                   { return nil }

// Small segments follow each other quickly. If each had new memory, Go would collect it all the time.
func TestSegmentsAreWrittenInTheSameMemory(t *testing.T) {
	const segments, most = 64, 2 * blockBytes
	d := New(nowhere{newMemory(func(string) error { return nil })}, 0)
	list := slices.Repeat([]Chunk{{Count: 1, Payload: [][]byte{make([]byte, blockBytes/8)}}}, 12)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for range segments {
		if _, err := attempt(d, list); err != nil {
			t.Fatal(err)
		}
	}
	runtime.ReadMemStats(&after)
	if each := (after.TotalAlloc - before.TotalAlloc) / segments; each > most {
		t.Errorf("a segment allocates %d bytes", each)
	}
}
