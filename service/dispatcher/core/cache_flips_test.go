package core_test

import (
	"fmt"
	"math/rand/v2"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// startedStream matches a command that starts a stream: epoch, stream, lease, what it does at the cached step, and its order.
var startedStream = regexp.MustCompile(`^session (\d+): start j1/(\d+)/(\d+) lease=(\d+)(?: inline)?(?: (write|read) (\S+))?( order .*)?$`)

// decidedOrder is the other order of a job's steps. orderedKey is the key of the cache in it.
const (
	decidedOrder = "Map_decoded,Crop,Jitter,Take_decoded"
	orderedKey   = "2e9a758df7754d245b7c85a31ee2f7a2227bb179c5c62995405e7f771f1a0a5c"
)

// decidedStep matches the record of a decision.
var decidedStep = regexp.MustCompile(`^record cache of j1 from epoch \d+ is "(\w*)"`)

// flips is a job whose decision changes all the time, with one worker at a time.
type flips struct {
	*script
	rng     *rand.Rand
	session int
	// step is the step of the newest decision. opened is the step of the open epoch.
	step, opened string
	epoch        int
	// leases has the newest lease of each stream. does says what the worker does with the stream. keys has the key of its
	// cache.
	leases, does, keys map[string]string
	did                map[string]int
	// ordered is set if the steps may have another order.
	ordered bool
}

// see follows what the worker is asked to do, and checks it.
func (f *flips) see(lines []string) {
	f.t.Helper()
	for _, line := range lines {
		found := startedStream.FindStringSubmatch(line)
		if found == nil {
			continue
		}
		epoch, stream, lease, mode, what := found[2], found[3], found[4], found[5], found[6]
		key := strings.TrimPrefix(f.opened, "Take_")
		if found[7] != "" && key != "" {
			key = orderedKey
			f.did["ordered "+mode]++
		}
		if epoch != fmt.Sprint(f.epoch) {
			f.t.Fatalf("epoch %d is open: %s", f.epoch, line)
		}
		right := map[string]bool{
			"": true, "write": what == key && key != "", "read": strings.HasPrefix(what, fmt.Sprintf("c-%s-%s-", key, stream)) && key != "",
		}
		if !right[mode] {
			f.t.Fatalf("epoch %d caches %q: %s", f.epoch, f.opened, line)
		}
		f.leases[stream], f.does[stream], f.keys[stream] = lease, mode, key
		f.did[mode]++
	}
}

func (f *flips) do(format string, args ...any) {
	f.t.Helper()
	f.see(f.run(fmt.Sprintf(format, args...)))
}

func (f *flips) decide() {
	steps := []string{"", "Take_read", "Take_decoded"}
	if f.ordered {
		steps = []string{"", "Take_decoded", "Take_decoded order=" + decidedOrder}
	}
	lines := f.run(fmt.Sprintf("decided job=j1 step=%s why=measured", steps[f.rng.IntN(len(steps))]))
	for _, line := range lines {
		if found := decidedStep.FindStringSubmatch(line); found != nil {
			f.step = found[1]
		}
	}
	f.see(lines)
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
		if f.ordered && f.epoch > 6 && f.rng.IntN(4) == 0 {
			f.do("rolled_back job=j1 why=it_fails")
		}
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
// only at the step that its epoch caches, with the key of its own order, and each is delivered once.
func TestA5DecisionsFlipWhileWorkersDie(t *testing.T) {
	const streams, epochs = 6, 12
	did := map[string]int{}
	for seed := range uint64(40) {
		f := &flips{
			script: newScript(t), rng: rand.New(rand.NewPCG(seed, 5)), session: 1, leases: map[string]string{}, does: map[string]string{}, keys: map[string]string{},
			did: did, ordered: seed%2 == 1,
		}
		options := "candidates=read,decoded order=off"
		if f.ordered {
			options = "candidates=decoded+Jitter+Crop order=auto tolerance=approximate hash=h"
		}
		for _, line := range []string{
			"start cluster=c", "dataset fingerprint=f1", "hello session=1 worker=w1 slots=2 caches", "merge fingerprint=f1 plan=h order=" + decidedOrder,
			fmt.Sprintf("job client=a request=r1 dataset=f1 streams=%d cached=auto %s", streams, options),
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
				if key := f.keys[stream]; f.does[stream] == "write" && f.rng.IntN(3) > 0 {
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
	for what, least := range map[string]int{"read": 100, "write": 100, "": 100, "ordered read": 50, "ordered write": 100, "ordered ": 20} {
		if did[what] < least {
			t.Errorf("streams did %v", did)
		}
	}
}
