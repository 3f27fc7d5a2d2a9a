package core_test

import (
	"fmt"
	"strings"
	"testing"
)

const plannedOrder = "planned asked=1 order=Crop,Jitter steps=Jitter,Crop before=0.0127 after=0.004 why=Crop_moves_down"

// O1: workers die while they try an order. Others try it, twice at most; then the registered order stays. The
// workers' streams move, and no element is blamed.
func TestO1AnOrderThatEndsItsWorkersIsRefused(t *testing.T) {
	s := newScript(t)
	for _, line := range []string{
		"start cluster=c", "dataset fingerprint=f1", "hello session=1 worker=w1 slots=2",
		"job client=a request=r1 dataset=f1 streams=2 order=auto hash=h cardinality=100000", "open client=a request=o1 job=j1",
		"metrics session=1 job=j1 nodes=Crop:400:0.1,Jitter:400:5", "wait 1s", plannedOrder,
	} {
		s.run(line)
	}
	for n := 1; n <= 3; n++ {
		if state := s.core.Status(s.now).Jobs[0].Order.State; state != "proposed" {
			t.Fatalf("after %d deaths the order is %s", n-1, state)
		}
		lease := 2*n - 1
		s.run(fmt.Sprintf("worker-heartbeat session=%d streams=j1/0/0:%d:5:0,j1/0/1:%d:5:0", n, lease, lease+1))
		s.run(fmt.Sprintf("crashes worker=w%d running=j1/0/0:%d:5:0", n, lease))
		s.run(fmt.Sprintf("broken session=%d", n))
		s.run("wait 1100ms")
		s.run(fmt.Sprintf("hello session=%d worker=w%d slots=2", n+1, n+1))
		s.run("heartbeat client=a jobs=j1 passes=j1/0:0")
		s.run("wait 1s")
		for _, stream := range s.core.State().Jobs()[0].Epochs[0].Active() {
			if stream.Deaths+stream.Crashes > 0 || stream.Worker.GetWorkerId() != fmt.Sprintf("w%d", n+1) {
				t.Errorf("after %d deaths the stream is %v", n, stream)
			}
		}
	}
	if job := s.core.Status(s.now).Jobs[0]; job.Order.State != "refused" || len(s.core.State().Snapshot().Orders) != 1 {
		t.Errorf("after three deaths: %v", job)
	}
	s.checkReplay()
}

// O2: the dispatcher dies at any point of a rollout. Without a decision, the rollout starts again. A stream has
// one order from its first lease to its last.
func TestO2ADispatcherThatDiesDuringARollout(t *testing.T) {
	way := []string{
		"hello session=1 worker=w1 slots=4", "job client=a request=r1 dataset=f1 streams=2 order=auto hash=h cardinality=100000",
		"open client=a request=o1 job=j1", "metrics session=1 job=j1 nodes=Crop:400:0.1,Jitter:400:5", "wait 1s", plannedOrder,
		"tried session=1 id=1-1 elements=40 original=0.0127 ordered=0.004", "open client=a request=o2 job=j1",
		"metrics session=1 job=j1 nodes=Crop:2000:0.5,Jitter:2000:26 ordered=Crop:900:0.2,Jitter:900:6", "wait 1s", "open client=a request=o3 job=j1",
	}
	again := []string{
		"hello session=2 worker=w1 slots=4 cluster=c", way[1], way[2], "metrics session=2 job=j1 nodes=Crop:400:0.1,Jitter:400:5", "wait 1s", plannedOrder,
		"tried session=2 id=1-1 elements=40 original=0.0127 ordered=0.004", "tried session=2 id=2-1 elements=40 original=0.0127 ordered=0.004",
		// Metrics from before the restart no longer count for an open epoch. The next epoch is a pilot, too.
		way[7], way[10], "metrics session=2 job=j1 nodes=Crop:2000:0.5,Jitter:2000:26 ordered=Crop:900:0.2,Jitter:900:6", "wait 1s",
		"open client=a request=o4 job=j1",
	}
	for dies := range len(way) + 1 {
		s := newScript(t)
		s.run("start cluster=c")
		s.run("dataset fingerprint=f1")
		for _, line := range way[:dies] {
			s.run(line)
		}
		s.run("restart")
		for _, line := range again {
			s.run(line)
		}
		s.checkReplay()
		snapshot := s.core.State().Snapshot()
		if len(snapshot.Orders) != 1 || len(snapshot.Profiles) != 1 || s.core.Status(s.now).Jobs[0].Order.State != "adopted" {
			t.Errorf("died after %d steps: %v", dies, snapshot.Orders)
		}
		for i, epoch := range snapshot.Jobs[0].Epochs {
			last := i == len(snapshot.Jobs[0].Epochs)-1
			if ordered, whole := len(epoch.Order) > 0, len(epoch.OrderStreams) == 0; ordered != (i > 0) || i == 1 && whole || last && !whole {
				t.Errorf("died after %d steps: epoch %d has the order %v in %v", dies, i, epoch.Order, epoch.OrderStreams)
			}
		}
	}
}

// O5: production contradicts a trial. An order costs more than streams of the same epochs, or than earlier
// epochs, or it fails. It is rolled back, and a restarted dispatcher remembers that.
func TestO5ProductionContradictsATrial(t *testing.T) {
	begin := []string{
		"start cluster=c", "dataset fingerprint=f1", "hello session=1 worker=w1 slots=4", "job client=a request=r1 dataset=f1 streams=2 order=auto hash=h cardinality=100000",
		"open client=a request=o1 job=j1", "metrics session=1 job=j1 nodes=Crop:400:0.1,Jitter:400:5", "wait 1s", plannedOrder,
		"tried session=1 id=1-1 elements=40 original=0.0127 ordered=0.004", "open client=a request=o2 job=j1",
	}
	const borneOut = "metrics session=1 job=j1 nodes=Crop:1000:0.25,Jitter:1000:10.75 ordered=Crop:300:0.1,Jitter:300:2"
	for name, way := range map[string][]string{
		"same epochs":    {"metrics session=1 job=j1 nodes=Crop:1000:0.25,Jitter:1000:12 ordered=Crop:300:0.1,Jitter:300:5"},
		"later":          {borneOut, "wait 1s", "open client=a request=o3 job=j1", "metrics session=1 job=j1 nodes=Crop:1900:0.5,Jitter:1900:40 ordered=Crop:1200:0.4,Jitter:1200:31"},
		"elements fail":  {"metrics session=1 job=j1 nodes=Crop:400:0.1,Jitter:400:5 failed=1 ordered-failed=1"},
		"they fail late": {borneOut, "wait 1s", "open client=a request=o3 job=j1", borneOut + " failed=1 ordered-failed=1"},
		"a stream fails": {"failed session=1 stream=j1/1/0 lease=3 code=3 message=bad"},
		"it is not run":  {"failed session=1 stream=j1/1/0 lease=3 code=14", "failed session=1 stream=j1/1/0 lease=5 code=14", "failed session=1 stream=j1/1/0 lease=6 code=14"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newScript(t)
			for _, line := range append(begin, way...) {
				s.run(line)
			}
			if state := s.core.Status(s.now).Jobs[0].Order.State; state == "rolled back" && strings.HasPrefix(way[len(way)-1], "metrics") {
				t.Fatal("it was rolled back before it was looked at")
			}
			s.run("wait 1s")
			s.run("restart")
			s.run("open client=a request=last job=j1")
			s.checkReplay()
			epochs := s.core.State().Snapshot().Jobs[0].Epochs
			if order := s.core.Status(s.now).Jobs[0].Order; order.State != "rolled back" || len(epochs[len(epochs)-1].Order) > 0 || len(epochs[1].Order) == 0 {
				t.Errorf("the order is %v, epochs are %v", order, epochs)
			}
		})
	}
}
