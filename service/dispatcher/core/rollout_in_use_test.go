package core_test

import (
	"fmt"
	"strings"
	"testing"
)

// inUse plays a job of 64 streams on two slots, whose elements cost so many seconds of CPU. It returns the elements that were
// done when a first fresh stream of the open epoch had the order. That stream is the pilot. It also returns those when all fresh
// streams had it. The trial takes the time of 20 elements in both orders and 0.125 s of openings, or its budget. Production does
// as much work in that time. One of the two slots is free for the pilot at once, and then has half of the elements.
func inUse(t *testing.T, each, gain float64, cardinality int) (pilot, all int) {
	t.Helper()
	s := newScript(t)
	for _, line := range []string{
		"start cluster=c", "dataset fingerprint=f1", "hello session=1 worker=w1 slots=2",
		fmt.Sprintf("job client=a request=r1 dataset=f1 streams=64 order=auto hash=h cardinality=%d", cardinality), "open client=a request=o1 job=j1",
	} {
		s.run(line)
	}
	for done := 20; done < 20_000; done += max(10, done/40) {
		ordered := 0
		if pilot > 0 {
			ordered = (done - pilot) / 2
		}
		cpu := each * (float64(done) - gain*float64(ordered))
		metrics := fmt.Sprintf("metrics session=1 job=j1 nodes=Crop:%d:0,Jitter:%d:%g", done, done, cpu)
		if ordered > 0 {
			metrics += fmt.Sprintf(" ordered=Crop:%d:0,Jitter:%d:%g", ordered, ordered, each*(1-gain)*float64(ordered))
		}
		lines := s.run(metrics)
		s.run("worker-heartbeat session=1")
		s.run("heartbeat client=a jobs=j1 passes=j1/0:0")
		text := strings.Join(append(lines, s.run("wait 1s")...), "\n")
		if strings.Contains(text, "plan order 1") {
			text = strings.Join(s.run(fmt.Sprintf("planned asked=1 order=Crop,Jitter steps=Jitter,Crop before=%g after=%g", each, each*(1-gain))), "\n")
		}
		if _, try, is := strings.Cut(text, ": try "); is {
			var id string
			var budget float64
			fmt.Sscan(try, &id)
			_, rest, _ := strings.Cut(try, " for ")
			fmt.Sscan(rest, &budget)
			done += int(min(budget, 20*each*(2-gain)+0.125)/each) + 1
			s.run(fmt.Sprintf("tried session=1 id=%s elements=20 original=%g ordered=%g", id, each, each*(1-gain)))
			s.run("heartbeat client=a jobs=j1 passes=j1/0:0")
			s.run("wait 1s")
		}
		epoch := s.core.State().Jobs()[0].Epochs[0]
		if pilot == 0 && len(epoch.OrderStreams) > 0 {
			pilot = done
		}
		if epoch.OrderBelow > 0 {
			s.checkReplay()
			return pilot, done
		}
	}
	return pilot, 0
}

// An order is in use when a fresh stream of the open epoch has it. The goal for an order that saves 30 % or more is 3 s of work or
// 300 elements, whichever is later. It holds if the length of an epoch is known. Otherwise up to 1.2 times as much is reached,
// because the trial's budget follows from the work that was done. All fresh streams have the order after production has measured
// 200 elements and 1 s in both orders.
func TestAnOrderIsInUseSoon(t *testing.T) {
	for _, each := range []float64{0.001, 0.01, 0.05} {
		for _, gain := range []float64{0.3, 0.5} {
			for cardinality, reached := range map[int]float64{0: 1.2, 100_000: 1} {
				pilot, all := inUse(t, each, gain, cardinality)
				if pilot == 0 || float64(pilot) > reached*max(300, 3/each) {
					t.Errorf("elements of %g s, gain %g, length %d: the order is in use after %d elements", each, gain, cardinality, pilot)
				}
				if all == 0 || float64(all-pilot) > 2*max(200, 1/each)*1.06 {
					t.Errorf("elements of %g s, gain %g, length %d: all fresh streams have the order after %d elements, and the pilot after %d", each, gain, cardinality, all, pilot)
				}
			}
		}
	}
}
