package core_test

import (
	"fmt"
	"strings"
	"testing"
)

// newTrialJob begins the first epoch of a job, of which a better order can be planned. cardinality is the length of an epoch; 0:
// unknown.
func newTrialJob(t *testing.T, cardinality int) *script {
	t.Helper()
	s := newScript(t)
	for _, line := range []string{
		"start cluster=c", "dataset fingerprint=f1", "hello session=1 worker=w1 slots=2",
		fmt.Sprintf("job client=a request=r1 dataset=f1 streams=2 order=auto hash=h cardinality=%d", cardinality), "open client=a request=o1 job=j1",
	} {
		s.run(line)
	}
	return s
}

// measureTrialJob reports so many elements with so many seconds of CPU for each, and returns what follows in a second.
func (s *script) measureTrialJob(done int, each float64) []string {
	lines := s.run(fmt.Sprintf("metrics session=1 job=j1 nodes=Crop:%d:0,Jitter:%d:%g", done, done, each*float64(done)))
	s.run("worker-heartbeat session=1")
	s.run("heartbeat client=a jobs=j1 passes=j1/0:0")
	return append(lines, s.run("wait 1s")...)
}

// tries runs a job of this many seconds of CPU for each element until a trial begins, or until the job ends after its elements. It
// returns the elements that were done, and the budget of the trial in seconds.
func tries(t *testing.T, each float64, cardinality, elements int, gain float64) (done int, budget float64) {
	t.Helper()
	s := newTrialJob(t, cardinality)
	planned := false
	for done = 20; done <= elements; done += max(20, done/20) {
		text := strings.Join(s.measureTrialJob(done, each), "\n")
		if !planned && strings.Contains(text, "plan order 1") {
			planned = true
			text = strings.Join(s.run(fmt.Sprintf("planned asked=1 order=Crop,Jitter steps=Jitter,Crop before=1 after=%g", 1-gain)), "\n")
		}
		if _, rest, is := strings.Cut(text, "up to Crop and Jitter for "); is {
			if _, err := fmt.Sscan(rest, &budget); err != nil {
				t.Fatal(err)
			}
			return done, budget
		}
	}
	return elements, 0
}

// An order that would save 30 % or more is tried within 3 s of work or 300 elements, whichever is later. Whatever a trial
// finds, it costs at most 2 % of the work of a job whose length is known. It also costs at most a quarter of what it saves.
func TestATrialCostsWhatItsGainIsWorth(t *testing.T) {
	for _, each := range []float64{0.0005, 0.003, 0.01, 0.04, 0.2} {
		mark := int(max(300, 3/each))
		for _, gain := range []float64{0.05, 0.3, 0.6} {
			for _, epoch := range []int{500, 2000, 100_000} {
				work := each * float64(epoch)
				done, budget := tries(t, each, epoch, epoch, gain)
				if budget > 0.02*work*1.001 || budget > gain/4*(work-each*float64(done))*1.001 {
					t.Errorf("an epoch of %d elements of %g s: a trial after %d of them may cost %g s for a gain of %g", epoch, each, done, budget, gain)
				}
				if gain >= 0.3 && work > 6.25+1700*each && (budget == 0 || done > mark*106/100) {
					t.Errorf("an epoch of %d elements of %g s: the trial for a gain of %g begins after %d elements", epoch, each, gain, done)
				}
			}
			if done, budget := tries(t, each, 0, 100_000, gain); budget == 0 || gain >= 0.3 && done > mark*106/100 {
				t.Errorf("an epoch of unknown length, elements of %g s: the trial for a gain of %g begins after %d elements, and may cost %g s", each, gain, done, budget)
			}
		}
	}
}

// Trials that decide nothing cost no more in all than a share of the work. If the length of an epoch is unknown, that is a share
// of eight times what was done.
func TestAllTrialsOfAnOrderCostAShareOfTheWork(t *testing.T) {
	const each, elements = 0.01, 20_000
	for cardinality, expected := range map[int]float64{elements: 1, 0: 8} {
		s := newTrialJob(t, cardinality)
		spent, trials := 0.0, 0
		for done := 200; done <= elements; done += 200 {
			lines := s.measureTrialJob(done, each)
			if strings.Contains(strings.Join(lines, "\n"), "plan order 1") {
				lines = s.run("planned asked=1 order=Crop,Jitter steps=Jitter,Crop before=1 after=0.5")
			}
			for _, line := range lines {
				var id string
				var budget float64
				if _, try, is := strings.Cut(line, ": try "); is {
					fmt.Sscan(try, &id)
					_, budgetOf, _ := strings.Cut(try, " for ")
					fmt.Sscan(budgetOf, &budget)
					spent, trials = spent+budget, trials+1
					s.run(fmt.Sprintf("tried session=1 id=%s elements=10 cpu=%g refused=unclear short=yes", id, budget))
				}
			}
			work := expected * each * float64(done)
			if cardinality > 0 {
				work = each * elements
			}
			if spent > 0.02*work*1.001 {
				t.Fatalf("%d elements: %d trials cost %g s of %g s", cardinality, trials, spent, work)
			}
		}
		if trials == 0 || cardinality == 0 && trials < 3 {
			t.Errorf("%d elements: %d trials", cardinality, trials)
		}
	}
}
