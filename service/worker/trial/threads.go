package trial

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// threads measures the CPU of the calling goroutine's thread and of the threads that it creates, TensorFlow's
// included. Other threads of the process do not count. A new thread inherits the name of its creator, so a
// unique name identifies them.
type threads struct {
	own    int
	name   string
	before []byte

	mu sync.Mutex
	// last is the last reading of each thread.
	last  map[int]time.Duration
	spent time.Duration
}

var lastThreads atomic.Uint64

// markThreads binds the goroutine to its thread until the same goroutine calls release.
func markThreads() (*threads, error) {
	runtime.LockOSThread()
	t := &threads{own: unix.Gettid(), name: fmt.Sprintf("pecan-try-%d", lastThreads.Add(1)%100_000), last: map[int]time.Duration{}}
	before, err := os.ReadFile(t.comm(t.own))
	if err == nil {
		t.before = before
		err = os.WriteFile(t.comm(t.own), []byte(t.name), 0)
	}
	if err == nil {
		t.last[t.own], err = threadCPU(t.own)
	}
	if err != nil {
		runtime.UnlockOSThread()
		return nil, fmt.Errorf("measure the CPU of a thread: %w", err)
	}
	return t, nil
}

func (t *threads) comm(thread int) string { return fmt.Sprintf("/proc/self/task/%d/comm", thread) }

func (t *threads) release() {
	// A name that remains is harmless.
	_ = os.WriteFile(t.comm(t.own), []byte(strings.TrimSpace(string(t.before))), 0)
	runtime.UnlockOSThread()
}

// find finds the threads that were created since, and returns how many there are besides the calling one.
func (t *threads) find() (int, error) {
	entries, err := os.ReadDir("/proc/self/task")
	if err != nil {
		return 0, err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, entry := range entries {
		thread, err := strconv.Atoi(entry.Name())
		if _, known := t.last[thread]; err != nil || known {
			continue
		}
		if name, err := os.ReadFile(t.comm(thread)); err != nil || strings.TrimSpace(string(name)) != t.name {
			continue
		}
		t.last[thread] = 0
	}
	return len(t.last) - 1, nil
}

// cpu is what the threads have spent since they were marked or created.
func (t *threads) cpu() time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	for thread, last := range t.last {
		now, err := threadCPU(thread)
		if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ESRCH) {
			delete(t.last, thread)
			continue
		}
		if err != nil || now < last {
			continue
		}
		t.spent += now - last
		t.last[thread] = now
	}
	return t.spent
}

// threadCPU reads the CPU clock of a thread of this process.
func threadCPU(thread int) (time.Duration, error) {
	// The clock id is built as in pthread_getcpuclockid: the complement of the thread number, "per thread", "as
	// scheduled".
	const perThread, scheduled = 4, 2
	var now unix.Timespec
	err := unix.ClockGettime(int32(^thread<<3|perThread|scheduled), &now)
	return time.Duration(now.Nano()), err
}
