package cache

import (
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// slow is a directory in memory whose calls take a while.
type slow struct {
	*memory
	delay atomic.Int64
	calls atomic.Int32
}

func slowly(delay time.Duration) *slow {
	s := &slow{}
	s.delay.Store(int64(delay))
	s.memory = newMemory(func(string) error { s.wait(); return nil })
	return s
}

func (s *slow) wait() {
	s.calls.Add(1)
	time.Sleep(time.Duration(s.delay.Load()))
}

func (s *slow) Open(name string) (Readable, int64, error) {
	s.wait()
	return s.memory.Open(name)
}

// D14: each call takes 5 s. The first one fails in time, the others at once, and nothing of the segment stays. When the directory is
// fast again, it is used again.
func TestASlowDirectoryIsNotWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, list := slowly(5*time.Second), chunks(7, 12)
		d := New(s, 0)
		began := time.Now()
		for range 20 {
			if _, err := attempt(d, list); !errors.Is(err, ErrNoAnswer) {
				t.Fatal(err)
			}
		}
		if took := time.Since(began); took > 2*mostWait {
			t.Errorf("twenty segments took %v", took)
		}
		if n := s.calls.Load(); n > 1 {
			t.Errorf("%d calls were made at once", n)
		}
		time.Sleep(time.Minute)
		if left, err := s.List(); len(left) != 0 || err != nil {
			t.Errorf("left behind: %v, %v", left, err)
		}
		s.delay.Store(int64(time.Millisecond))
		segment, err := attempt(d, list)
		if err != nil {
			t.Fatal(err)
		}
		// It is slow again while it is read. The error is no end, and no damage.
		r, err := d.Open(segment, new(pool).alloc)
		if err != nil {
			t.Fatal(err)
		}
		if err := r.Close(); err != nil {
			t.Fatal(err)
		}
		s.delay.Store(int64(5 * time.Second))
		if _, err := d.Open(segment, new(pool).alloc); !errors.Is(err, ErrNoAnswer) {
			t.Error(err)
		}
		time.Sleep(time.Minute)
		s.delay.Store(int64(time.Millisecond))
		if n, err := readAll(t, d, segment, list); n != len(list) {
			t.Errorf("%d of %d chunks: %v", n, len(list), err)
		}
	})
}

// stuck is a directory in memory that does not answer before it is released.
type stuck struct {
	*memory
	hangs   atomic.Bool
	calls   atomic.Int32
	release chan struct{}
}

func (s *stuck) Create(name string) (File, error) {
	if s.hangs.Load() {
		s.calls.Add(1)
		<-s.release
	}
	return s.memory.Create(name)
}

func (s *stuck) Remove(name string) error {
	if s.hangs.Load() {
		s.calls.Add(1)
		<-s.release
	}
	return s.memory.Remove(name)
}

// D14: a mount hangs for hours. Each call in it holds a thread, so few are made after mostUnanswered. When it answers, it is used
// again.
func TestAHangingMountHoldsABoundedNumberOfThreads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, list := &stuck{memory: newMemory(func(string) error { return nil }), release: make(chan struct{})}, chunks(7, 12)
		s.hangs.Store(true)
		d := New(s, 0)
		for range 10 * mostUnanswered {
			if _, err := attempt(d, list); !errors.Is(err, ErrNoAnswer) {
				t.Fatal(err)
			}
			_ = d.Remove(testName)
			time.Sleep(2 * restFor * mostWait)
		}
		if n := s.calls.Load(); n < mostUnanswered || n > mostUnanswered+10 {
			t.Errorf("%d calls hang, want few more than %d", n, mostUnanswered)
		}
		if err := d.Remove(testName); !errors.Is(err, ErrNoAnswer) {
			t.Errorf("a file was not removed: %v", err)
		}
		s.hangs.Store(false)
		close(s.release)
		synctest.Wait()
		if _, err := attempt(d, list); err != nil {
			t.Error(err)
		}
	})
}

// D14: an operator replaces the mount that hangs by another one. The calls in the old one never return.
func TestAMountThatReplacesAHangingOneIsUsed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, list := &stuck{memory: newMemory(func(string) error { return nil }), release: make(chan struct{})}, chunks(7, 12)
		s.hangs.Store(true)
		d := New(s, 0)
		began := time.Now()
		for range 4 * mostUnanswered {
			if _, err := attempt(d, list); !errors.Is(err, ErrNoAnswer) {
				t.Fatal(err)
			}
			time.Sleep(2 * restFor * mostWait)
		}
		lasted := time.Since(began)
		s.hangs.Store(false)
		for began = time.Now(); ; time.Sleep(time.Minute) {
			_, err := attempt(d, list)
			if err == nil {
				break
			}
			if time.Since(began) > 2*lasted {
				t.Fatalf("the mount is not used %v after an outage of %v: %v", time.Since(began), lasted, err)
			}
		}
		var writers sync.WaitGroup
		for range 4 {
			writers.Go(func() {
				if _, err := d.fs.List(); err != nil {
					t.Error(err)
				}
			})
		}
		writers.Wait()
		close(s.release)
		synctest.Wait()
		if d.fs.old != 0 {
			t.Errorf("%d calls are unanswered", d.fs.old)
		}
	})
}
