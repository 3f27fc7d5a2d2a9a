package serve

import (
	"fmt"
	"sync"

	"golang.org/x/sys/unix"
)

// minSlot is the smallest shared memory slot. Smaller payloads are copied through the socket, which costs less
// than returning a slot.
const minSlot = 64 << 10

// slot is shared memory that this worker writes and one reader reads.
type slot struct {
	number uint64
	memory []byte
	// fd is open until the SLOT frame was sent.
	fd   int
	busy bool
}

// slots are the slots of one connection. Only its writing goroutine allocates them; the reading one returns
// them.
type slots struct {
	mu    sync.Mutex
	limit int64
	total int64
	next  uint64
	all   map[uint64]*slot
}

// get finds a free slot for n bytes or makes one. It returns nil if the limit is reached: the payload then goes
// through the socket. drop lists free slots of unfitting size that were released to make room.
func (s *slots) get(n uint64) (found *slot, drop []uint64, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, candidate := range s.all {
		if !candidate.busy && uint64(len(candidate.memory)) >= n && uint64(len(candidate.memory)) <= 2*n+minSlot &&
			(found == nil || len(candidate.memory) < len(found.memory)) {
			found = candidate
		}
	}
	if found != nil {
		found.busy = true
		return found, nil, nil
	}
	size := slotSize(n)
	for number, candidate := range s.all {
		if s.total+size <= s.limit {
			break
		}
		if !candidate.busy {
			s.remove(candidate)
			drop = append(drop, number)
		}
	}
	if s.total+size > s.limit && s.total > 0 {
		return nil, drop, nil
	}
	made, err := newSlot(s.next, size)
	if err != nil {
		return nil, drop, err
	}
	s.next++
	s.total += size
	s.all[made.number] = made
	made.busy = true
	return made, drop, nil
}

// slotSize rounds up, so that elements of slightly different sizes share slots.
func slotSize(n uint64) int64 {
	step := max(uint64(minSlot), n/8)
	return int64((n + step - 1) / step * step)
}

func newSlot(number uint64, size int64) (*slot, error) {
	fd, err := unix.MemfdCreate("pecan-slot", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, fmt.Errorf("create shared memory: %w", err)
	}
	memory, err := mapSlot(fd, size)
	if err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("create shared memory of %d bytes: %w", size, err)
	}
	return &slot{number: number, memory: memory, fd: fd}, nil
}

func mapSlot(fd int, size int64) ([]byte, error) {
	if err := unix.Ftruncate(fd, size); err != nil {
		return nil, err
	}
	// The reader relies on this seal: a file that shrinks would crash it.
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_SEAL); err != nil {
		return nil, err
	}
	return unix.Mmap(fd, 0, int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
}

// release marks a slot free; it returns false if no such slot is in use.
func (s *slots) release(number uint64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	found := s.all[number]
	if found == nil || !found.busy {
		return false
	}
	found.busy = false
	return true
}

func (s *slots) remove(gone *slot) {
	s.total -= int64(len(gone.memory))
	delete(s.all, gone.number)
	gone.close()
}

func (s *slot) closeFD() {
	if s.fd >= 0 {
		unix.Close(s.fd)
		s.fd = -1
	}
}

func (s *slot) close() {
	s.closeFD()
	_ = unix.Munmap(s.memory)
}

// close unmaps everything. The reader keeps its own mappings.
func (s *slots) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, each := range s.all {
		s.remove(each)
	}
}
