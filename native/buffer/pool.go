package buffer

import (
	"container/list"
	"errors"
	"fmt"
	"math/bits"
	"slices"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	pageSize = 4096
	// Buffers up to smallMax come from slabs; each larger one is a region of its own.
	smallMin = 1 << 8
	smallMax = 1 << 18
	slabSize = 1 << 20
	hugePage = 2 << 20
	// Blocks smaller than hugeFrom are mapped several at once, arenaSize in all, because huge pages are larger than many of them.
	hugeFrom  = 4 << 20
	arenaSize = 8 << 20
	classes   = 11
	unlimited = -1
)

// defaultMaxIdle is the idle memory that a pool keeps if its Config sets no limit.
const defaultMaxIdle = 256 << 20

// Config sets the limits of a pool.
type Config struct {
	// MaxIdle is how many bytes of released memory are kept for reuse; the longest unused is freed first. 0
	// means defaultMaxIdle, -1 keeps everything.
	MaxIdle int64
	// Checked is for tests, and slow. Every buffer gets its own pages with an inaccessible page after them. A released
	// buffer becomes inaccessible at once, and misuse panics. Leaks returns where buffers in use were requested.
	Checked bool
}

// Validate reports all problems at once.
func (c Config) Validate() error {
	var err error
	if c.MaxIdle < unlimited {
		err = errors.Join(err, fmt.Errorf("buffer pool: max idle of %d bytes; give a size, 0 for the default or -1 for no limit", c.MaxIdle))
	}
	return err
}

// place is where a buffer's memory came from and returns to.
type place struct {
	region []byte
	slab   *slab
	number int
	checks *checkedBlock
}

// Pool hands out buffers and takes their memory back. It is safe for concurrent use.
type Pool struct {
	maxIdle int64
	checked *checker

	mu     sync.Mutex
	closed bool
	slabs  [classes]slabClass
	// large holds idle regions by size, the most recently used last. order holds all of them, the oldest
	// first.
	large map[int][]*list.Element
	order *list.List
	stats Stats
}

// NewPool creates a pool, which holds no memory until the first Get.
func NewPool(config Config) (*Pool, error) {
	if err := config.Validate(); err != nil {
		return nil, err
	}
	p := &Pool{maxIdle: config.MaxIdle, large: map[int][]*list.Element{}, order: list.New()}
	if p.maxIdle == 0 {
		p.maxIdle = defaultMaxIdle
	}
	if config.Checked {
		p.checked = newChecker()
	}
	return p, nil
}

// Get returns a buffer of n bytes with one reference. Its content is undefined. The kernel provides pages when
// they are first written, so a large buffer costs nothing until bytes arrive.
func (p *Pool) Get(n int) (*Buffer, error) {
	if n < 0 || n > maxBuffer {
		return nil, fmt.Errorf("get a buffer of %d bytes: the limit is %d", n, int64(maxBuffer))
	}
	b := &Buffer{home: p}
	b.refs.Store(1)
	var err error
	switch {
	case p.checked != nil:
		err = p.getChecked(b, n)
	case n <= smallMax:
		err = p.getSmall(b, n)
	default:
		err = p.getLarge(b, n)
	}
	if err != nil {
		return nil, fmt.Errorf("get a buffer of %d bytes: %w", n, err)
	}
	return b, nil
}

// getLarge gives a buffer an idle block of its size class, or a new mapping.
func (p *Pool) getLarge(b *Buffer, n int) error {
	size := largeClass(n)
	p.mu.Lock()
	p.stats.Gets++
	if idle := p.large[size]; len(idle) > 0 {
		last := idle[len(idle)-1]
		p.large[size] = idle[:len(idle)-1]
		b.place.region = p.order.Remove(last).([]byte)
		p.stats.IdleBytes -= int64(size)
		p.stats.Reused++
	}
	p.count(1, int64(n))
	p.mu.Unlock()
	if b.place.region == nil {
		regions, err := mapArena(size)
		p.mu.Lock()
		defer p.mu.Unlock()
		if err != nil {
			p.count(-1, -int64(n))
			return err
		}
		b.place.region = regions[0]
		p.stats.MappedBytes += int64(size * len(regions))
		for _, region := range regions[1:] {
			p.keepUntouched(region)
		}
	}
	b.bytes = b.place.region[:n:n]
	return nil
}

// keep keeps an idle region for reuse. p.mu is held.
func (p *Pool) keep(region []byte) {
	size := len(region)
	p.large[size] = append(p.large[size], p.order.PushBack(region))
	p.stats.IdleBytes += int64(size)
}

// keepUntouched keeps a region that was never used. It is evicted before all others, which have pages already. p.mu is held.
func (p *Pool) keepUntouched(region []byte) {
	size := len(region)
	p.large[size] = slices.Insert(p.large[size], 0, p.order.PushFront(region))
	p.stats.IdleBytes += int64(size)
}

// count counts a buffer that is handed out. p.mu is held.
func (p *Pool) count(buffers, bytes int64) {
	p.stats.Buffers += buffers
	p.stats.Bytes += bytes
}

// reclaim implements home.
func (p *Pool) reclaim(b *Buffer) {
	n := int64(len(b.bytes))
	if p.checked != nil {
		p.reclaimChecked(b)
		return
	}
	p.mu.Lock()
	p.count(-1, -n)
	var victims [][]byte
	if b.place.slab != nil {
		p.putSmall(b.place.slab, b.place.number)
	} else {
		p.keep(b.place.region)
	}
	keep := p.maxIdle
	if p.closed {
		keep = 0
	}
	victims = p.evict(keep)
	p.mu.Unlock()
	b.bytes, b.place = nil, place{}
	unmapAll(victims)
}

// misuse implements home.
func (p *Pool) misuse(what string) {
	p.mu.Lock()
	p.stats.Misuses++
	p.mu.Unlock()
	if p.checked != nil {
		panic("buffer: " + what)
	}
}

// evict removes idle memory, the longest unused first, until at most keep bytes are idle. The caller holds
// p.mu, and unmaps the result after releasing p.mu, because unmapping many pages takes milliseconds.
func (p *Pool) evict(keep int64) [][]byte {
	if keep == unlimited {
		return nil
	}
	var victims [][]byte
	for p.stats.IdleBytes > keep && p.order.Len() > 0 {
		oldest := p.order.Front()
		region := p.order.Remove(oldest).([]byte)
		idle := p.large[len(region)]
		for i, element := range idle {
			if element == oldest {
				idle = append(idle[:i], idle[i+1:]...)
				break
			}
		}
		if len(idle) == 0 {
			delete(p.large, len(region))
		} else {
			p.large[len(region)] = idle
		}
		p.stats.IdleBytes -= int64(len(region))
		p.stats.MappedBytes -= int64(len(region))
		victims = append(victims, region)
	}
	if p.stats.IdleBytes > keep {
		victims = append(victims, p.evictSlabs(keep)...)
	}
	return victims
}

// Trim returns idle memory to the kernel until at most keep bytes are idle.
func (p *Pool) Trim(keep int64) {
	p.mu.Lock()
	victims := p.evict(max(keep, 0))
	p.mu.Unlock()
	unmapAll(victims)
}

// Close returns all idle memory to the kernel. Buffers in use stay valid; their memory returns to the kernel
// on release.
func (p *Pool) Close() {
	p.mu.Lock()
	p.closed = true
	victims := p.evict(0)
	p.mu.Unlock()
	unmapAll(victims)
	if p.checked != nil {
		p.checked.flush()
	}
}

// Stats returns what the pool holds now.
func (p *Pool) Stats() Stats {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.stats
}

// Leaks returns, in checked mode, where the buffers in use were requested. It is empty otherwise.
func (p *Pool) Leaks() []string {
	if p.checked == nil {
		return nil
	}
	return p.checked.leaks()
}

// largeClass rounds up to eighths of a power of two and whole pages. At most an eighth of a buffer is unused,
// and buffers of similar sizes share memory.
func largeClass(n int) int {
	step := max(1<<(bits.Len(uint(n-1))-4), pageSize)
	return (n + step - 1) &^ (step - 1)
}

// mapArena maps regions of the same size, which begin at a huge page. Devices transfer into huge pages in fewer and larger pieces,
// and they need fewer page faults. Each region can be unmapped alone.
func mapArena(size int) ([][]byte, error) {
	if size >= hugeFrom {
		region, err := mapRegion(size, 0)
		return [][]byte{region}, err
	}
	count := max(1, arenaSize/size)
	arena, err := mapRegion(count*size, hugePage)
	if err != nil {
		return nil, err
	}
	regions := make([][]byte, count)
	for i := range regions {
		regions[i] = arena[i*size : (i+1)*size : (i+1)*size]
	}
	return regions, nil
}

// mapRegion maps memory at a multiple of align, which is 0 for any address.
func mapRegion(size, align int) ([]byte, error) {
	mapped, err := unix.MmapPtr(-1, 0, nil, uintptr(size+align), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE)
	if err != nil {
		return nil, fmt.Errorf("map %d bytes of memory: %w", size, err)
	}
	region := unsafe.Slice((*byte)(mapped), size+align)
	if align > 0 {
		begin := (align - int(uintptr(mapped)%uintptr(align))) % align
		unmap(region[:begin])
		unmap(region[begin+size:])
		region = region[begin : begin+size : begin+size]
	}
	if size >= hugeFrom {
		// This is only advice: a kernel without huge pages provides small ones.
		_ = unix.Madvise(region, unix.MADV_HUGEPAGE)
	}
	return region, nil
}

func unmap(region []byte) {
	if len(region) == 0 {
		return
	}
	// It fails only for an address that was never mapped, or if a process has too many mappings. No caller can repair either.
	_ = unix.MunmapPtr(unsafe.Pointer(unsafe.SliceData(region)), uintptr(len(region)))
}

func unmapAll(regions [][]byte) {
	for _, region := range regions {
		unmap(region)
	}
}
