package tf

import (
	"encoding/binary"
	"io"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"
)

// shared is a source of the int64 batches [0 1 2] [3 4 5] ... that lie in one piece of memory.
type shared struct {
	memory      []byte
	left, given int
	released    atomic.Int32
}

func newShared(t *testing.T, batches int) *shared {
	t.Helper()
	memory, err := unix.Mmap(-1, 0, 64*batches, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Munmap(memory) })
	for i := range 3 * batches {
		binary.LittleEndian.PutUint64(memory[i/3*64+i%3*8:], uint64(i))
	}
	return &shared{memory: memory, left: batches}
}

func (s *shared) Pull() ([]*Tensor, error) {
	if s.left == 0 {
		return nil, io.EOF
	}
	s.left--
	tensor, err := Share(Int64, []int64{3}, s.memory[64*s.given:][:24], func() { s.released.Add(1) })
	s.given++
	return []*Tensor{tensor}, err
}

func TestATensorSharesMemoryUntilItsLastUse(t *testing.T) {
	c := newContext(t)
	s := newShared(t, 500)
	first, err := s.Pull()
	if err != nil {
		t.Fatal(err)
	}
	if ptr(first[0].Data()) != ptr(s.memory) || len(first[0].Data()) != 24 {
		t.Error("the tensor has a copy")
	}
	handle := RegisterSource(s)
	defer RemoveSource(handle)
	it, err := c.NewIterator(pullGraph(t, handle), []DataType{Int64, Float})
	if err != nil {
		t.Fatal(err)
	}
	wantBatches(t, it, 1, 500)
	it.Close()
	if n := s.released.Load(); n != 499 {
		t.Errorf("%d of the 499 batches that the graph has read are released", n)
	}
	ReleaseAll(first)
	if n := s.released.Load(); n != 500 {
		t.Errorf("%d of 500 batches are released", n)
	}
}

func TestMemoryThatIsTooSmallForATensorIsReleased(t *testing.T) {
	newContext(t)
	s := newShared(t, 1)
	if _, err := Share(Int64, []int64{4}, s.memory[:24], func() { s.released.Add(1) }); err == nil || s.released.Load() != 1 {
		t.Errorf("%v, released %d times", err, s.released.Load())
	}
}
