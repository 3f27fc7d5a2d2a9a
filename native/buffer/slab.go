package buffer

import "math/bits"

// slab is one mapping that is divided into equal buffers. A slab without buffers in use is idle memory.
type slab struct {
	region []byte
	size   int
	class  int
	// free holds the numbers of the buffers that are not in use.
	free []int
	// at is the slab's index in its class's list of slabs with free buffers; -1 when it has none.
	at int
}

func (s *slab) total() int { return slabSize / s.size }

// slabClass holds the slabs of one buffer size that have free buffers.
type slabClass struct {
	open []*slab
}

func smallClass(n int) int {
	if n <= smallMin {
		return 0
	}
	return bits.Len(uint(n-1)) - bits.Len(uint(smallMin-1))
}

// getSmall gives a buffer a place in a slab of its size class.
func (p *Pool) getSmall(b *Buffer, n int) error {
	class := smallClass(n)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stats.Gets++
	open := p.slabs[class].open
	var s *slab
	if len(open) > 0 {
		s = open[len(open)-1]
		p.stats.Reused++
	} else {
		// The mapping happens under the lock: it is one system call per hundreds of buffers, and accesses no
		// page.
		region, err := mapRegion(slabSize, 0)
		if err != nil {
			return err
		}
		s = &slab{region: region, size: smallMin << class, class: class}
		for number := s.total() - 1; number >= 0; number-- {
			s.free = append(s.free, number)
		}
		p.stats.MappedBytes += slabSize
		p.stats.IdleBytes += slabSize
		p.openSlab(s)
	}
	if len(s.free) == s.total() {
		p.stats.IdleBytes -= slabSize
	}
	number := s.free[len(s.free)-1]
	s.free = s.free[:len(s.free)-1]
	if len(s.free) == 0 {
		p.shutSlab(s)
	}
	at := number * s.size
	b.bytes = s.region[at : at+n : at+n]
	b.place = place{slab: s, number: number}
	p.count(1, int64(n))
	return nil
}

// putSmall takes a small buffer back. p.mu is held.
func (p *Pool) putSmall(s *slab, number int) {
	s.free = append(s.free, number)
	if len(s.free) == 1 {
		p.openSlab(s)
	}
	if len(s.free) == s.total() {
		p.stats.IdleBytes += slabSize
	}
}

func (p *Pool) openSlab(s *slab) {
	class := &p.slabs[s.class]
	s.at = len(class.open)
	class.open = append(class.open, s)
}

func (p *Pool) shutSlab(s *slab) {
	class := &p.slabs[s.class]
	last := class.open[len(class.open)-1]
	class.open[s.at] = last
	last.at = s.at
	class.open = class.open[:len(class.open)-1]
	s.at = -1
}

// evictSlabs removes slabs without buffers in use. p.mu is held.
func (p *Pool) evictSlabs(keep int64) [][]byte {
	var victims [][]byte
	for class := range p.slabs {
		open := p.slabs[class].open
		for i := len(open) - 1; i >= 0 && p.stats.IdleBytes > keep; i-- {
			s := open[i]
			if len(s.free) < s.total() {
				continue
			}
			p.shutSlab(s)
			open = p.slabs[class].open
			p.stats.IdleBytes -= slabSize
			p.stats.MappedBytes -= slabSize
			victims = append(victims, s.region)
		}
	}
	return victims
}
