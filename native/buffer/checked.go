package buffer

import (
	"fmt"
	"runtime"
	"slices"
	"sync"

	"golang.org/x/sys/unix"
)

// quarantine is how many released buffers stay mapped but unreadable. A late use then faults, where it would
// otherwise read what the kernel mapped there since.
const quarantine = 256

// checker is the state of checked mode.
type checker struct {
	mu       sync.Mutex
	inUse    map[*checkedBlock]struct{}
	released [][]byte
}

type checkedBlock struct {
	region []byte
	bytes  int
	stack  string
}

func newChecker() *checker { return &checker{inUse: map[*checkedBlock]struct{}{}} }

// getChecked places the end of the buffer before an inaccessible page, as close as the alignment allows.
func (p *Pool) getChecked(b *Buffer, n int) error {
	aligned := (n + Align - 1) &^ (Align - 1)
	body := (aligned + pageSize - 1) &^ (pageSize - 1)
	region, err := mapRegion(body+pageSize, 0)
	if err != nil {
		return err
	}
	if err := unix.Mprotect(region[body:], unix.PROT_NONE); err != nil {
		unmap(region)
		return fmt.Errorf("protect the page behind a buffer: %w", err)
	}
	at := body - aligned
	b.bytes = region[at : at+n : at+n]
	b.place.checks = &checkedBlock{region: region, bytes: n, stack: callers()}
	p.checked.mu.Lock()
	p.checked.inUse[b.place.checks] = struct{}{}
	p.checked.mu.Unlock()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stats.Gets++
	p.stats.MappedBytes += int64(len(region))
	p.count(1, int64(n))
	return nil
}

func (p *Pool) reclaimChecked(b *Buffer) {
	checks := b.place.checks
	p.mu.Lock()
	p.count(-1, -int64(checks.bytes))
	p.stats.MappedBytes -= int64(len(checks.region))
	p.mu.Unlock()
	p.checked.retire(checks)
	b.bytes, b.place = nil, place{}
}

func (c *checker) retire(checks *checkedBlock) {
	// An access to a released buffer must fault, and its pages are not needed any more.
	_ = unix.Madvise(checks.region, unix.MADV_DONTNEED)
	_ = unix.Mprotect(checks.region, unix.PROT_NONE)
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.inUse, checks)
	c.released = append(c.released, checks.region)
	if len(c.released) > quarantine {
		unmap(c.released[0])
		c.released = c.released[1:]
	}
}

func (c *checker) flush() {
	c.mu.Lock()
	defer c.mu.Unlock()
	unmapAll(c.released)
	c.released = nil
}

func (c *checker) leaks() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var leaks []string
	for checks := range c.inUse {
		leaks = append(leaks, fmt.Sprintf("%d bytes got by\n%s", checks.bytes, checks.stack))
	}
	slices.Sort(leaks)
	return leaks
}

func callers() string {
	var stack [2048]byte
	return string(stack[:runtime.Stack(stack[:], false)])
}
