package buffer

import (
	"errors"
	"fmt"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"
)

// errSlotBusy means that a slot's previous content is still in use.
var errSlotBusy = errors.New("shared memory slot is still being read")

// Slot is one piece of shared memory that a worker writes and this process reads, one content at a time.
type Slot struct {
	pool *Pool

	mu      sync.Mutex
	region  []byte
	reading bool
	dropped bool
	// released informs the writer. It is set while a content is being read.
	released func()
}

// MapSlot maps size bytes of the shared memory of a descriptor, which the caller closes. It refuses a
// descriptor whose memory is shorter than size, because an access to the missing part would kill the process.
//
// The mapping is writable, because users can obtain a tensor's memory in ways that write (DLPack). A write to
// an element that the worker has sent does no harm; a fault would end the trainer.
func (p *Pool) MapSlot(fd int, size int64) (*Slot, error) {
	if size <= 0 || size > maxBuffer {
		return nil, fmt.Errorf("map a shared memory slot of %d bytes: give a size between 1 and %d", size, int64(maxBuffer))
	}
	var stat unix.Stat_t
	if err := unix.Fstat(fd, &stat); err != nil {
		return nil, fmt.Errorf("map a shared memory slot: %w", err)
	}
	if stat.Size < size {
		return nil, fmt.Errorf("map a shared memory slot: announced with %d bytes, it has %d", size, stat.Size)
	}
	// A writer that could truncate the memory later could kill the reader.
	seals, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
	if err != nil {
		return nil, fmt.Errorf("map a shared memory slot: the descriptor is not a memfd: %w", err)
	}
	if seals&unix.F_SEAL_SHRINK == 0 {
		return nil, errors.New("map a shared memory slot: the memfd is not sealed against shrinking (F_SEAL_SHRINK)")
	}
	pointer, err := unix.MmapPtr(fd, 0, nil, uintptr(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("map a shared memory slot of %d bytes: %w", size, err)
	}
	p.mu.Lock()
	p.stats.Slots++
	p.stats.SlotBytes += size
	p.mu.Unlock()
	return &Slot{pool: p, region: unsafe.Slice((*byte)(pointer), size)}, nil
}

// Read returns the first n bytes of the slot as a buffer. The buffer's last release calls released, once and
// without a lock held, from any goroutine or thread; released must not block.
func (s *Slot) Read(n int, released func()) (*Buffer, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.dropped:
		return nil, errors.New("read a shared memory slot: it was dropped")
	case s.reading:
		return nil, errSlotBusy
	case n < 0 || n > len(s.region):
		return nil, fmt.Errorf("read %d bytes of a shared memory slot of %d", n, len(s.region))
	}
	s.reading, s.released = true, released
	b := &Buffer{home: s, bytes: s.region[:n:n]}
	b.refs.Store(1)
	s.pool.mu.Lock()
	s.pool.count(1, int64(n))
	s.pool.stats.Gets++
	s.pool.stats.Reused++
	s.pool.mu.Unlock()
	return b, nil
}

// Drop unmaps the slot, at once or when the content that is being read is released. That release does not
// inform the writer any more. Idempotent.
func (s *Slot) Drop() {
	s.mu.Lock()
	s.dropped, s.released = true, nil
	var region []byte
	if !s.reading {
		region, s.region = s.region, nil
	}
	s.mu.Unlock()
	s.unmap(region)
}

func (s *Slot) unmap(region []byte) {
	if region == nil {
		return
	}
	unmap(region)
	s.pool.mu.Lock()
	s.pool.stats.Slots--
	s.pool.stats.SlotBytes -= int64(len(region))
	s.pool.mu.Unlock()
}

// reclaim implements home.
func (s *Slot) reclaim(b *Buffer) {
	n := len(b.bytes)
	s.mu.Lock()
	s.reading = false
	released := s.released
	s.released = nil
	var region []byte
	if s.dropped {
		region, s.region = s.region, nil
	}
	s.mu.Unlock()
	b.bytes = nil
	s.pool.mu.Lock()
	s.pool.count(-1, -int64(n))
	s.pool.mu.Unlock()
	s.unmap(region)
	if released != nil {
		released()
	}
}

// misuse implements home.
func (s *Slot) misuse(what string) { s.pool.misuse(what) }
