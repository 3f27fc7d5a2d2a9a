package wait

import (
	"time"

	"golang.org/x/sys/unix"
)

// Time is a time by two clocks, neither of which people set: Go's, which stands still while the host sleeps, and one that does not.
type Time struct {
	at   time.Time
	boot time.Duration
}

func Now() Time { return Time{time.Now(), bootTime()} }

// Since is how long ago it was, by the clock that has gone further.
func (m Time) Since() time.Duration { return max(time.Since(m.at), bootTime()-m.boot) }

// bootTime is the time since the host was started, sleep included.
func bootTime() time.Duration {
	var at unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &at); err != nil {
		return 0
	}
	return time.Duration(at.Nano())
}
