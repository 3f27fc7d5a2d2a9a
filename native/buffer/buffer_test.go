package buffer

import (
	"bytes"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"unsafe"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func newPool(t testing.TB, config Config) *Pool {
	t.Helper()
	p, err := NewPool(config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		p.Close()
		stats := p.Stats()
		if stats.Buffers != 0 || stats.Bytes != 0 || stats.MappedBytes != 0 || stats.IdleBytes != 0 || stats.Slots != 0 || stats.SlotBytes != 0 {
			t.Errorf("after close: %v", stats)
		}
		if leaks := p.Leaks(); len(leaks) > 0 {
			t.Errorf("leaked: %v", leaks)
		}
	})
	return p
}

func get(t testing.TB, p *Pool, n int) *Buffer {
	t.Helper()
	b, err := p.Get(n)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestBlocksAreAlignedWritableAndAsLongAsAsked(t *testing.T) {
	t.Parallel()
	for name, config := range map[string]Config{"plain": {}, "checked": {Checked: true}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPool(t, config)
			var buffers []*Buffer
			for _, n := range []int{0, 1, 63, 64, 65, 1024, 1025, 4096, smallMax - 1, smallMax, smallMax + 1, 3 << 20, 9600000} {
				b := get(t, p, n)
				if b.Len() != n || cap(b.Bytes()) != n {
					t.Errorf("asked for %d bytes, got %d with room for %d", n, b.Len(), cap(b.Bytes()))
				}
				if at := uintptr(unsafe.Pointer(unsafe.SliceData(b.Bytes()))); at%Align != 0 {
					t.Errorf("buffer of %d bytes at %#x is not aligned", n, at)
				}
				for i := range b.Bytes() {
					b.Bytes()[i] = byte(n)
				}
				buffers = append(buffers, b)
			}
			for _, b := range buffers {
				n := b.Len()
				if bytes.Count(b.Bytes(), []byte{byte(n)}) != n {
					t.Errorf("another buffer wrote into the one of %d bytes", n)
				}
				b.Release()
			}
		})
	}
}

func TestBuffersOfOneSizeShareHugePages(t *testing.T) {
	t.Parallel()
	p := newPool(t, Config{})
	size := 1<<20 + 4096
	first := get(t, p, size)
	mapped := p.Stats().MappedBytes
	if at := uintptr(unsafe.Pointer(unsafe.SliceData(first.Bytes()))); at%hugePage != 0 || mapped <= arenaSize-2<<20 || mapped > arenaSize {
		t.Errorf("the first buffer is at %#x, with %d bytes mapped", at, mapped)
	}
	held := []*Buffer{first}
	for range int(mapped)/len(first.place.region) - 1 {
		held = append(held, get(t, p, size))
	}
	if now := p.Stats(); now.MappedBytes != mapped || now.IdleBytes != 0 {
		t.Errorf("%v after all of what was mapped", now)
	}
	for i, b := range held {
		for j := range b.Bytes() {
			b.Bytes()[j] = byte(i)
		}
	}
	for i, b := range held {
		if bytes.Count(b.Bytes(), []byte{byte(i)}) != size {
			t.Errorf("another buffer wrote into buffer %d", i)
		}
		b.Release()
	}
}

func TestInvalidSizesAreRefused(t *testing.T) {
	t.Parallel()
	p := newPool(t, Config{})
	for _, n := range []int{-1, maxBuffer + 1} {
		if _, err := p.Get(n); err == nil {
			t.Errorf("got a buffer of %d bytes", n)
		}
	}
	// More than the address space: the pool returns the kernel's error and counts nothing.
	var held []*Buffer
	for range 2 {
		b, err := p.Get(maxBuffer)
		if err == nil {
			held = append(held, b)
		}
	}
	if len(held) == 2 {
		t.Error("got the whole address space twice")
	}
	for _, b := range held {
		b.Release()
	}
	p.Trim(0)
	if stats := p.Stats(); stats.Buffers != 0 || stats.MappedBytes != 0 {
		t.Errorf("%v", stats)
	}
}

func TestReleasedMemoryIsReused(t *testing.T) {
	t.Parallel()
	p := newPool(t, Config{})
	for _, n := range []int{100, 200 << 10, 9600000} {
		first := get(t, p, n)
		at := unsafe.SliceData(first.Bytes())
		first.Release()
		mapped := p.Stats().MappedBytes
		second := get(t, p, n)
		if unsafe.SliceData(second.Bytes()) != at || p.Stats().MappedBytes != mapped {
			t.Errorf("%d bytes: new memory where the old one was free", n)
		}
		second.Release()
	}
}

func TestABlockLivesUntilItsLastRelease(t *testing.T) {
	t.Parallel()
	p := newPool(t, Config{})
	b := get(t, p, 1000)
	b.Retain().Release()
	b.Retain()
	b.Release()
	if p.Stats().Buffers != 1 {
		t.Fatal("given back while a reference was held")
	}
	b.Release()
	if p.Stats().Buffers != 0 {
		t.Fatal("not given back by the last release")
	}
}

func TestAnExtraReleaseIsHarmless(t *testing.T) {
	t.Parallel()
	p := newPool(t, Config{})
	old := get(t, p, 1000)
	old.Release()
	now := get(t, p, 1000)
	old.Release()
	old.Retain()
	old.Release()
	if stats := p.Stats(); stats.Buffers != 1 || stats.Misuses != 3 {
		t.Errorf("%v, want one buffer in use and three misuses", stats)
	}
	now.Release()
	var none *Buffer
	none.Release()
	if none.Retain() != nil || none.Bytes() != nil || none.Len() != 0 {
		t.Error("a nil buffer is not empty")
	}
}

func TestIdleMemoryIsBoundedAndEvictedOldestFirst(t *testing.T) {
	t.Parallel()
	p := newPool(t, Config{MaxIdle: 5 << 20})
	var buffers []*Buffer
	for i := range 4 {
		buffers = append(buffers, get(t, p, 1<<20+i*(1<<18)))
	}
	for _, b := range buffers {
		b.Release()
		if idle := p.Stats().IdleBytes; idle > 5<<20 {
			t.Errorf("%d bytes idle", idle)
		}
	}
	mapped := p.Stats().MappedBytes
	b := get(t, p, 1<<20+3*(1<<18))
	if p.Stats().MappedBytes != mapped {
		t.Error("the buffer released last was not kept")
	}
	b.Release()
	p.Trim(1 << 20)
	if idle := p.Stats().IdleBytes; idle > 1<<20 {
		t.Errorf("%d bytes idle after trimming to 1 MiB", idle)
	}
}

func TestSmallBlocksShareSlabsThatAreFreedWhenEmpty(t *testing.T) {
	t.Parallel()
	p := newPool(t, Config{})
	var buffers []*Buffer
	for range 3 * slabSize / 2048 {
		buffers = append(buffers, get(t, p, 2000))
	}
	if mapped := p.Stats().MappedBytes; mapped != 3*slabSize {
		t.Errorf("%d bytes mapped for three slabs' worth", mapped)
	}
	rand.Shuffle(len(buffers), func(i, j int) { buffers[i], buffers[j] = buffers[j], buffers[i] })
	for _, b := range buffers[1:] {
		b.Release()
	}
	p.Trim(0)
	if mapped := p.Stats().MappedBytes; mapped != slabSize {
		t.Errorf("%d bytes mapped for one buffer", mapped)
	}
	buffers[0].Release()
}

func TestAClosedPoolsMemoryIsFreedWithItsLastBlock(t *testing.T) {
	t.Parallel()
	p := newPool(t, Config{})
	small, large := get(t, p, 10), get(t, p, 1<<20)
	p.Close()
	large.Bytes()[0] = 1
	small.Bytes()[0] = 1
	small.Release()
	large.Release()
	if mapped := p.Stats().MappedBytes; mapped != 0 {
		t.Errorf("%d bytes mapped", mapped)
	}
}

func TestManyGoroutinesShareAPool(t *testing.T) {
	t.Parallel()
	p := newPool(t, Config{MaxIdle: 4 << 20})
	var wg sync.WaitGroup
	for g := range 4 {
		wg.Go(func() {
			random := rand.New(rand.NewPCG(uint64(g), 1))
			var held []*Buffer
			for range 400 {
				if len(held) > 8 {
					held[0].Release()
					held = held[1:]
				}
				b, err := p.Get(random.IntN(1 << random.IntN(21)))
				if err != nil {
					t.Error(err)
					return
				}
				if b.Len() > 0 {
					b.Bytes()[0], b.Bytes()[b.Len()-1] = byte(g), byte(g)
				}
				held = append(held, b.Retain())
				b.Release()
			}
			for _, b := range held {
				if b.Len() > 0 && b.Bytes()[b.Len()-1] != byte(g) {
					t.Error("another goroutine wrote into a held buffer")
				}
				b.Release()
			}
		})
	}
	wg.Wait()
}

func TestCheckedModeReportsLeaksAndPanicsOnMisuse(t *testing.T) {
	t.Parallel()
	p := newPool(t, Config{Checked: true})
	b := get(t, p, 100)
	if leaks := p.Leaks(); len(leaks) != 1 || !strings.Contains(leaks[0], "100 bytes") || !strings.Contains(leaks[0], "TestCheckedMode") {
		t.Errorf("leaks: %v", leaks)
	}
	b.Release()
	defer func() {
		if recover() == nil {
			t.Error("a release too many did not panic")
		}
	}()
	b.Release()
}

func TestConfigIsValidated(t *testing.T) {
	t.Parallel()
	if _, err := NewPool(Config{MaxIdle: -2}); err == nil {
		t.Error("accepted a negative bound")
	}
	p := newPool(t, Config{MaxIdle: unlimited})
	b := get(t, p, 600<<20)
	b.Release()
	if p.Stats().IdleBytes < 600<<20 {
		t.Error("did not keep everything")
	}
}
