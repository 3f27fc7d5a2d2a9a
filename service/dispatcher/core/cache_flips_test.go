package core_test

import (
	"fmt"
	"math/rand/v2"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// started matches a command that starts a stream: epoch, stream, lease, and what it does at the cached step.
var startedStream = regexp.MustCompile(`^session (\d+): start j1/(\d+)/(\d+) lease=(\d+)(?: (write|read) (\S+))?$`)

// flips is a job whose decision changes all the time, with one worker at a time.
type flips struct {
	*script
	rng     *rand.Rand
	session int
	// step is the step of the newest decision, and opened that of the open epoch.
	step, opened string
	epoch        int
	// leases has the newest lease of each stream, and does what it does with it.
	leases, does map[string]string
	did          map[string]int
}

// see follows what the worker is asked to do, and checks it.
func (f *flips) see(lines []string) {
	f.t.Helper()
	key := strings.TrimPrefix(f.opened, "Take_")
	for _, line := range lines {
		found := startedStream.FindStringSubmatch(line)
		if found == nil {
			continue
		}
		epoch, stream, lease, mode, what := found[2], found[3], found[4], found[5], found[6]
		if epoch != fmt.Sprint(f.epoch) {
			f.t.Fatalf("epoch %d is open: %s", f.epoch, line)
		}
		right := map[string]bool{
			"": true, "write": what == key && key != "", "read": strings.HasPrefix(what, fmt.Sprintf("c-%s-%s-", key, stream)) && key != "",
		}
		if !right[mode] {
			f.t.Fatalf("epoch %d caches %q: %s", f.epoch, f.opened, line)
		}
		f.leases[stream], f.does[stream] = lease, mode
		f.did[mode]++
	}
}

func (f *flips) do(format string, args ...any) {
	f.t.Helper()
	f.see(f.run(fmt.Sprintf(format, args...)))
}

func (f *flips) decide() {
	f.step = []string{"", "Take_read", "Take_decoded"}[f.rng.IntN(3)]
	f.do("decided job=j1 step=%s why=measured", f.step)
}

// another lets another worker register. The streams of the one before are leased again.
func (f *flips) another() {
	clear(f.leases)
	f.session++
	f.do("hello session=%d worker=w%d slots=2 caches cluster=c", f.session, f.session)
}

// disturb kills the worker or the dispatcher, or changes the decision in the middle of an epoch.
func (f *flips) disturb() {
	switch f.rng.IntN(4) {
	case 0:
		f.decide()
	case 1:
		f.do("leave session=%d", f.session)
		f.another()
	case 2:
		f.do("broken session=%d", f.session)
		f.do("wait 2s")
		f.another()
	case 3:
		f.do("restart")
		f.do("wait 15s")
		f.another()
	}
}

// Decisions change from epoch to epoch and within epochs, while workers and the dispatcher die. Each stream reads and writes
// only at the step that its epoch caches, and each is delivered once.
func TestA5DecisionsFlipWhileWorkersDie(t *testing.T) {
	const streams, epochs = 6, 12
	did := map[string]int{}
	for seed := range uint64(20) {
		f := &flips{script: newScript(t), rng: rand.New(rand.NewPCG(seed, 5)), session: 1, leases: map[string]string{}, does: map[string]string{}, did: did}
		for _, line := range []string{
			"start cluster=c", "dataset fingerprint=f1", "hello session=1 worker=w1 slots=2 caches",
			fmt.Sprintf("job client=a request=r1 dataset=f1 streams=%d candidates=read,decoded cached=auto order=off", streams),
		} {
			f.do("%s", line)
		}
		for f.epoch = range epochs {
			f.decide()
			f.opened = f.step
			clear(f.leases)
			f.do("open client=a request=o%d job=j1", f.epoch)
			for left := streams; left > 0; {
				if f.rng.IntN(3) == 0 {
					f.disturb()
				}
				var open []string
				for stream := range f.leases {
					open = append(open, stream)
				}
				if len(open) == 0 {
					t.Fatalf("seed %d: epoch %d has %d streams left and none is leased", seed, f.epoch, left)
				}
				slices.Sort(open)
				stream := open[f.rng.IntN(len(open))]
				lease := f.leases[stream]
				if key := strings.TrimPrefix(f.opened, "Take_"); f.does[stream] == "write" && f.rng.IntN(3) > 0 {
					f.do("written session=%d key=%s stream=%s of=%d name=c-%s-%s-%s-w%d.seg bytes=100 elements=5", f.session, key, stream, streams, key, stream, lease, f.session)
				}
				delete(f.leases, stream)
				f.do("ended session=%d stream=j1/%d/%s lease=%s count=5", f.session, f.epoch, stream, lease)
				f.do("finish client=a stream=j1/%d/%s lease=%s count=5", f.epoch, stream, lease)
				left--
			}
			closed := strings.Join(f.run(fmt.Sprintf("close client=a job=j1 epoch=%d", f.epoch)), "\n")
			if !strings.Contains(closed, fmt.Sprintf("delivered=true elements=%d", 5*streams)) {
				t.Fatalf("seed %d: epoch %d ended as %s", seed, f.epoch, closed)
			}
			f.checkReplay()
		}
	}
	if did["read"] < 100 || did["write"] < 100 || did[""] < 100 {
		t.Errorf("streams did %v", did)
	}
}
