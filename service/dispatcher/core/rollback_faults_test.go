package core_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/pecan-ml/pecan/service/dispatcher/core"
	"github.com/pecan-ml/pecan/service/dispatcher/core/durable"
)

// Whatever happens between them, an order whose streams always fail costs two epochs, and one whose elements fail costs one. Jobs come
// and go, epochs are left early, and the dispatcher restarts.
func TestAnOrderThatAlwaysFailsIsRolledBackInTime(t *testing.T) {
	for seed := range uint64(60) {
		rng, elements := rand.New(rand.NewPCG(seed, 8)), seed%2 == 1
		s := newScript(t)
		s.runAll(untilPiloted...)
		s.close("a", durable.FindEpoch(s.core.State().Job("j1"), 0))
		client, job, failed, ordered := "a", "j1", 0, 0
		for n := range 30 {
			if rng.IntN(4) == 0 {
				s.runAll("restart", "hello session=1 worker=w1 slots=8 cluster=c")
			}
			if rng.IntN(5) == 0 {
				s.run("goodbye client=" + client)
				client, job = fmt.Sprintf("c%d", n), fmt.Sprintf("j%d", s.created()+1)
				s.run(fmt.Sprintf("job client=%s request=r dataset=f1 streams=2 order=auto hash=h cardinality=100000", client))
			}
			epoch := s.open(client, job)
			if len(epoch.Order) > 0 {
				ordered++
			}
			switch {
			case durable.HasOrder(epoch, 0) && elements:
				s.run(fmt.Sprintf("metrics session=1 job=%s nodes=Crop:400:0.1,Jitter:400:5 failed=1 ordered-failed=1", job))
				s.close(client, epoch)
				failed++
			case durable.HasOrder(epoch, 0):
				s.fail(client, epoch, 0)
				failed++
			case rng.IntN(4) == 0:
				s.close(client, epoch)
			default:
				s.deliver(client, epoch)
			}
			s.run("wait 200ms")
		}
		want := map[bool]int{false: 2, true: 1}[elements]
		if failed != want || ordered != want || s.orderState(job) != "rolled back" {
			t.Errorf("seed %d: %d epochs failed, %d of them had the order, which is %s now", seed, failed, ordered, s.orderState(job))
		}
		s.checkReplay()
	}
}

// created counts the jobs that were ever created.
func (s *script) created() (n int) {
	for _, record := range s.records {
		if record.GetJobCreated() != nil {
			n++
		}
	}
	return n
}

// O9: the dispatcher dies after any of its records, also between two of one decision. The next one goes on from them.
func TestO9ADispatcherThatDiesBetweenTwoRecordsOfAnOrder(t *testing.T) {
	for _, file := range []string{
		"order_suspected.txt", "order_pilot_fails.txt", "order_adopted.txt", "order_spread.txt", "order_spread_rolled_back.txt", "order_rolled_back.txt", "order_pilot_jobs.txt", "order_wider.txt",
		"order_deterministic.txt", "cache_order.txt", "cache_order_kept.txt", "cache_ordered.txt",
	} {
		s := newScript(t)
		s.runFile(file)
		for below := range len(s.records) + 1 {
			after := newScript(t)
			after.cfg, after.now, after.records = s.cfg, s.now, s.records[:below:below]
			after.core = core.New(after.cfg, after.replay())
			after.decide(core.Start{ClusterID: "c", UnixS: after.unix()})
			after.run("hello session=9 worker=w1 slots=40 cluster=c")
			for _, job := range after.core.State().Jobs() {
				after.run("metrics session=9 job=" + job.JobId + " nodes=Crop:2000:0.5,Jitter:2000:26 ordered=Crop:900:0.2,Jitter:900:6")
			}
			after.run("wait 2s")
			for _, job := range after.core.State().Jobs() {
				for _, client := range job.ClientIds {
					after.run("open client=" + client + " request=after job=" + job.JobId)
				}
			}
			after.run("wait 1s")
			after.checkReplay()
		}
	}
}

// O10: a worker dies while it writes parts in an order that is rolled back meanwhile. Its streams keep the order on another worker. Its
// file belongs to no cache, and no stream of a later epoch reads or writes in that order.
func TestO10AWorkerDiesWhileItWritesForAnOrderThatIsRolledBack(t *testing.T) {
	s := newScript(t)
	s.runAll("start cluster=c", "dataset fingerprint=f1", "hello session=1 worker=w1 slots=2 caches", "merge fingerprint=f1 plan=h order="+decidedOrder,
		"job client=a request=r1 dataset=f1 streams=4 cached=auto candidates=decoded+Jitter+Crop order=auto tolerance=approximate hash=h",
		"decided job=j1 step=Take_decoded order="+decidedOrder+" why=measured")
	begun := strings.Join(s.run("open client=a request=o0 job=j1"), "\n")
	if strings.Count(begun, "write "+orderedKey) != 2 {
		t.Fatal(begun)
	}
	s.runAll("rolled_back job=j1 why=it_fails", "broken session=1", "wait 2s")
	again := strings.Join(s.run("hello session=2 worker=w2 slots=4 caches cluster=c"), "\n")
	if strings.Count(again, "write "+orderedKey+" order") != 2 || strings.Count(again, ": start ") != 4 {
		t.Errorf("on another worker:\n%s", again)
	}
	file := fmt.Sprintf("c-%s-0-1-1-w1.tmp", orderedKey)
	if removed := strings.Join(s.run("files session=2 names="+file), "\n"); !strings.Contains(removed, file) {
		t.Errorf("the file of the dead worker stays: %s", removed)
	}
	s.runAll("worker-heartbeat session=2", "heartbeat client=a jobs=j1", "close client=a job=j1 epoch=0")
	if next := strings.Join(s.run("open client=a request=o1 job=j1"), "\n"); strings.Contains(next, orderedKey) || strings.Contains(next, " order ") {
		t.Errorf("the next epoch:\n%s", next)
	}
	s.checkReplay()
}
