package measure

import "time"

// togetherTime is the least time over which workers are measured together. They report about once a second, and not at the same
// time.
const togetherTime = 10 * time.Second

// interval has the workers that have reported since a report. The zero interval is ready.
type interval struct {
	begin   time.Duration
	workers map[string]bool
}

// add adds a worker that reports at the time now. It is false for the first report, which only begins the interval.
func (i *interval) add(now time.Duration, worker string) bool {
	if i.workers == nil {
		i.begin, i.workers = now, map[string]bool{}
		return false
	}
	i.workers[worker] = true
	return true
}

// end begins the next interval if this one is long enough, and returns how many workers reported in how many seconds.
func (i *interval) end(now time.Duration) (workers int, seconds float64, ended bool) {
	if now-i.begin < togetherTime {
		return 0, 0, false
	}
	workers, seconds = len(i.workers), (now - i.begin).Seconds()
	i.begin, i.workers = now, map[string]bool{}
	return workers, seconds, true
}
