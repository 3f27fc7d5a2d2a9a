package sim

import (
	"bufio"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pecan-ml/pecan/native/tf"
	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/tests/sim/simnet"
)

var (
	oneSeed   = flag.Int64("seed", -1, "run the simulation of this seed alone")
	seedCount = flag.Int("seeds", 20, "run the simulations of this many seeds")
	firstSeed = flag.Int("first", 1, "the first seed")
)

// shortSeeds is the most seeds with -short. `make slow` runs 200 seeds.
const shortSeeds = 8

// chosen is a seed. placed is set if its job has an objective.
type chosen struct {
	seed   uint64
	placed bool
}

// isPlaced reports whether the job of a seed has an objective. It has none in the kept seeds, which were found before, unless
// their line says so.
func isPlaced(seed uint64) bool { return seed%3 == 0 }

// failedSeeds returns the seeds that failed once.
func failedSeeds(t *testing.T) []chosen {
	t.Helper()
	file, err := os.Open(filepath.Join("testdata", "seeds.txt"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	var seeds []chosen
	for lines := bufio.NewScanner(file); lines.Scan(); {
		text, _, _ := strings.Cut(lines.Text(), "#")
		number, kind, _ := strings.Cut(strings.TrimSpace(text), " ")
		if number == "" {
			continue
		}
		seed, err := strconv.ParseUint(number, 10, 64)
		if err != nil || kind != "" && kind != "placed" {
			t.Fatalf("testdata/seeds.txt: %q: %v", text, err)
		}
		seeds = append(seeds, chosen{seed, kind == "placed"})
	}
	return seeds
}

// X2: random clusters under random faults. Over all seeds, every kind of fault must have had an effect.
func TestSimulation(t *testing.T) {
	seeds := failedSeeds(t)
	if *oneSeed >= 0 {
		one := chosen{uint64(*oneSeed), isPlaced(uint64(*oneSeed))}
		if kept := slices.IndexFunc(seeds, func(s chosen) bool { return s.seed == one.seed }); kept >= 0 {
			one = seeds[kept]
		}
		seeds = []chosen{one}
	} else {
		count := *seedCount
		if testing.Short() {
			count = min(count, shortSeeds)
		}
		for n := range count {
			seed := uint64(*firstSeed + n)
			seeds = append(seeds, chosen{seed, isPlaced(seed)})
		}
	}
	shuffled.recordOrders(t, epochsRead)
	var mu sync.Mutex
	total := map[simnet.Fault]int{}
	tensors := tf.LiveTensors()
	t.Run("seed", func(t *testing.T) {
		for _, s := range seeds {
			t.Run(fmt.Sprint(s.seed), func(t *testing.T) {
				t.Parallel()
				hits := runSeed(t, s.seed, s.placed)
				mu.Lock()
				defer mu.Unlock()
				for kind, n := range hits {
					total[kind] += n
				}
				if t.Failed() {
					t.Logf("again: go test ./tests/sim -run Simulation -seed %d", s.seed)
				}
			})
		}
	})
	if now := tf.LiveTensors(); now != tensors && !t.Failed() {
		t.Errorf("%d tensors leaked", now-tensors)
	}
	t.Logf("%d seeds, effective faults: %v", len(seeds), total)
	if len(seeds) < 200 {
		return
	}
	for _, kind := range []simnet.Fault{simnet.Loss, simnet.Delay, simnet.Cut, simnet.Kill, simnet.PowerOff, simnet.Pause, simnet.Flip, stopKind, crashKind, diskKind, repeatKind, leaveKind, lostKind, abandonedKind, readKind, unfilledKind, chosenKind, movedKind, removedKind, troubledKind, localKind} {
		if total[kind] == 0 {
			t.Errorf("in %d seeds this fault never had an effect: %s", len(seeds), kind)
		}
	}
}

// epochsRead is the number of epochs in each run.
const epochsRead = 2

// anyStreams returns a number of streams from 1 to 1,024. Small numbers are as frequent as large ones. One seed in four has more
// than 127, because large epochs take minutes of CPU. Short runs have at most 31, because the race detector makes them slower still.
func anyStreams(rng *rand.Rand, seed uint64) int64 {
	most := int64(1024)
	switch {
	case testing.Short():
		most = 31
	case seed%4 != 0:
		most = 127
	}
	n := int64(1) << rng.IntN(11)
	return min(n+rng.Int64N(n), most)
}

// memoryDir returns a directory in memory, if the host has one. The disk would sync each of up to 1,024 segments in real time,
// while the clock of the simulation stands still.
func memoryDir(t *testing.T) string {
	dir, err := os.MkdirTemp("/dev/shm", "pecan-sim-")
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// runSeed takes everything from the seed: the cluster, what is read, what breaks and when. With placed, the job has an
// objective.
func runSeed(t *testing.T, seed uint64, placed bool) (hits map[simnet.Fault]int) {
	rng := rand.New(rand.NewPCG(seed, 0))
	data := []*dataset{batches, texts, uneven, shuffled}[rng.IntN(4)]
	// Later additions do not change what older seeds decide, except for this.
	if later := rand.New(rand.NewPCG(seed, 5)); later.IntN(3) == 0 {
		data = []*dataset{free, cached}[later.IntN(2)]
	}
	epochs := epochsRead
	if decides := rand.New(rand.NewPCG(seed, 14)); data.cached && decides.IntN(2) == 0 {
		data, epochs = decided, chosenEpochs
	}
	if divided := rand.New(rand.NewPCG(seed, 9)); divided.IntN(2) == 0 {
		data = data.divided(anyStreams(divided, seed))
	}
	mode := []pecanv1.Mode{pecanv1.Mode_MODE_EXACTLY_ONCE, pecanv1.Mode_MODE_EXACTLY_ONCE, pecanv1.Mode_MODE_DETERMINISTIC, pecanv1.Mode_MODE_DETERMINISTIC,
		pecanv1.Mode_MODE_AT_LEAST_ONCE, pecanv1.Mode_MODE_AT_MOST_ONCE}[rng.IntN(6)]
	want := wanted{
		dataset: data, mode: mode, pace: time.Duration(1+rng.IntN(4000)/data.elements()) * time.Millisecond, ahead: []int64{1, 20_000, 1 << 20}[rng.IntN(3)],
		checksum: true,
	}
	readers := 1
	if mode != pecanv1.Mode_MODE_DETERMINISTIC && rng.IntN(3) == 0 {
		readers, want.name = 2, "team"
	}
	o := options{seed: seed, workers: 1 + rng.IntN(3), slots: 1 + rng.IntN(4), repeated: rng.IntN(3) == 0}
	calm := placed && place(seed, &want, &o)
	data = want.dataset
	if data.shuffled && mode == pecanv1.Mode_MODE_DETERMINISTIC {
		data.recordOrders(t, epochsRead)
	}
	if data.cached {
		o.cacheDir, o.chosen = memoryDir(t), data.chosen
	}
	if rng.IntN(3) == 0 {
		o.compactEvery = 5 + rng.IntN(30)
	}
	type planned struct {
		fault fault
		at    int
		lasts time.Duration
		rng   *rand.Rand
	}
	var plan []planned
	for range 1 + rng.IntN(5) {
		at := rng.IntN(epochs * data.elements())
		if rng.IntN(3) == 0 {
			// At the start or at the change of epochs, when most is decided.
			at = max(0, rng.IntN(epochs)*data.elements()-rng.IntN(4))
		}
		plan = append(plan, planned{
			fault: faults[rng.IntN(len(faults))], at: at,
			// Between 20 ms and 20 s; short times are as frequent as long ones.
			lasts: time.Duration(20<<rng.IntN(10)+rng.IntN(20)) * time.Millisecond, rng: rand.New(rand.NewPCG(seed, uint64(100+len(plan)))),
		})
	}
	if latest := rand.New(rand.NewPCG(seed, 6)); latest.IntN(12) == 0 {
		// At the change of epochs the dispatcher grants streams. A worker's report of its start may be lost, and the
		// dispatcher may not hear the worker from then on. The worker then counts as dead while trainers read from it.
		data, readers = free, 2
		mode = []pecanv1.Mode{pecanv1.Mode_MODE_AT_LEAST_ONCE, pecanv1.Mode_MODE_AT_MOST_ONCE, pecanv1.Mode_MODE_AT_MOST_ONCE}[latest.IntN(3)]
		want.dataset, want.mode, want.name, want.ahead, want.pace = data, mode, "team", 1, time.Duration(1500+latest.IntN(1000))*time.Millisecond
		o.workers, o.slots, o.cacheDir = max(2, o.workers), 4, ""
		plan = append(plan[:latest.IntN(len(plan))], planned{
			fault: isolatedWorker, at: data.elements() - 1, lasts: time.Duration(11+latest.IntN(10)) * time.Second, rng: rand.New(rand.NewPCG(seed, 99)),
		})
	}
	if calm {
		readers, mode, plan = 1, pecanv1.Mode_MODE_AT_MOST_ONCE, nil
		want.mode, want.name = mode, ""
	}
	// One of two readers may leave its first pass early in good order. The other one reads the rest if it survives.
	leavesAt := -1
	mortal := slices.ContainsFunc(plan, func(p planned) bool { return p.fault.name == killTrainer })
	if leaves := rand.New(rand.NewPCG(seed, 7)); readers == 2 && !mortal && leaves.IntN(2) == 0 {
		leavesAt = leaves.IntN(data.elements() / 2)
		t.Logf("trainer 1 leaves its first pass after %d elements", leavesAt)
	}
	// One of two readers may stop reading for a while, and live. The other one gets its streams: it waits for less than
	// half an hour.
	stopsAt, stopsFor := 0, time.Duration(0)
	if stops := rand.New(rand.NewPCG(seed, 10)); readers == 2 && leavesAt < 0 && stops.IntN(2) == 0 {
		stopsAt, stopsFor = stops.IntN(data.elements()/2), time.Duration(1+stops.IntN(1800))*time.Second
		t.Logf("trainer 1 stops reading for %v after %d elements", stopsFor, stopsAt)
	}
	if shares := rand.New(rand.NewPCG(seed, 11)); shares.IntN(2) == 0 {
		want.weight, want.tenant = float64(1+shares.IntN(5)), []string{"", "a"}[shares.IntN(2)]
	}
	// A single reader may restart its epochs at their positions. Its earlier calls are repeated then too.
	if again := rand.New(rand.NewPCG(seed, 8)); readers == 1 && data.name != free.name && promiseOf(mode) != atMost && promiseOf(mode) != atLeast && again.IntN(2) == 0 {
		want.again = 1 + again.IntN(data.elements()-1)
		t.Logf("the trainer begins each epoch again after %d elements", want.again)
	}
	slices.SortStableFunc(plan, func(a, b planned) int { return a.at - b.at })
	if placed {
		t.Logf("placed by %v, provider %v, %d local workers, trainers apart %v, %v to drain", want.placement, o.provided, o.locals, o.apart, o.drain)
	}
	t.Logf("%s in %d streams, %v, %d trainers at %v and %d bytes, %d workers of %d slots, repeated %v", data.name, data.numStreams(), mode, readers, want.pace, want.ahead, o.workers, o.slots, o.repeated)
	for _, p := range plan {
		t.Logf("after %d elements, for %v: %s", p.at, p.lasts, p.fault.name)
	}
	simulate(t, o, func(c *cluster) {
		x := newChaos(c, readers)
		var reading sync.WaitGroup
		taken := c.ledger.taken.Load
		over := make(chan struct{})
		for _, p := range plan {
			x.wg.Go(func() {
				for int(taken()) < p.at {
					select {
					case <-over:
						return
					case <-time.After(5 * time.Millisecond):
					}
				}
				p.fault.do(x, p.rng, p.lasts)
			})
		}
		for n := range readers {
			reading.Go(func() {
				want := want
				if n == 1 {
					want.stopsAt, want.stopsFor = stopsAt, stopsFor
				}
				if o.apart {
					// The local workers of trainer 0 serve its job until then.
					time.Sleep(time.Duration(n) * 5 * time.Second)
				}
				tr := c.join(n, want)
				x.mu.Lock()
				x.all = append(x.all, tr)
				x.mu.Unlock()
				rest := epochs
				if n == 1 && leavesAt >= 0 {
					rest--
					// The other reader must be there: if it comes two epochs later, it finds nothing of this one.
					if _, err := tr.some(leavesAt, func() bool { return tr.taken.Load() < taken() }); err != nil {
						t.Error(err)
					}
				}
				if err := tr.read(rest); err != nil {
					t.Error(err)
				}
			})
		}
		reading.Wait()
		close(over)
		x.wg.Wait()
		c.repairAll()
		hits = x.happened()
		t.Logf("ended after %v, effective faults: %v", time.Since(c.began), hits)
		promised := promiseOf(mode)
		if hits[leaveKind] > 0 && promised == exactly {
			// The dead trainer may have received the last elements.
			promised = atLeast
		}
		if calm {
			promised = exactly
		}
		if placed {
			hits[movedKind] = c.movedByPlacement()
		}
		c.ledger.audit(data, promised, epochs)
		if promised == atMost && hits[leaveKind] == 0 {
			hits[lostKind] = c.lossesAreCounted(data)
		}
		if data.cached {
			hits[c.cacheFault()]++
		}
		hits[chosenKind] = int(c.choices.Load())
		hits[abandonedKind] = c.abandonedByTrainers()
	})
	return hits
}
