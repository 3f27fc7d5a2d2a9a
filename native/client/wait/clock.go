package wait

import (
	"time"

	"golang.org/x/sys/unix"
)

// Time is a point in time by two clocks that nobody can set. Go's clock stops while the host is suspended;
// the other does not.
type Time struct {
	at   time.Time
	boot time.Duration
}

func Now() Time { return Time{time.Now(), bootTime()} }

// Since returns the time that has passed, by the clock that advanced further.
func (t Time) Since() time.Duration { return max(time.Since(t.at), bootTime()-t.boot) }

// bootTime returns the time since the host booted, including suspension.
func bootTime() time.Duration {
	var at unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &at); err != nil {
		return 0
	}
	return time.Duration(at.Nano())
}
