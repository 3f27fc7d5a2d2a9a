package core_test

import (
	"fmt"
	"strings"
	"testing"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/dispatcher/core/durable"
)

// untilPiloted brings the order of a job of two streams to its pilot. The next epoch has it in stream 0.
var untilPiloted = []string{
	"start cluster=c", "dataset fingerprint=f1", "hello session=1 worker=w1 slots=8", "job client=a request=r1 dataset=f1 streams=2 order=auto hash=h cardinality=100000",
	"open client=a request=o1 job=j1", "metrics session=1 job=j1 nodes=Crop:400:0.1,Jitter:400:5", "wait 1s", plannedOrder,
	"tried session=1 id=1-1 elements=40 original=0.0127 ordered=0.004",
}

func (s *script) runAll(lines ...string) {
	for _, line := range lines {
		s.run(line)
	}
}

func (s *script) orderState(id string) string {
	s.t.Helper()
	for _, job := range s.core.Status(s.now).Jobs {
		if job.JobId == id {
			return job.Order.State
		}
	}
	s.t.Fatalf("no job %s", id)
	return ""
}

// open opens the next epoch of a job, and returns it.
func (s *script) open(client, job string) *durable.Epoch {
	s.t.Helper()
	s.run("heartbeat client=" + client + " jobs=" + job)
	s.run("worker-heartbeat session=1")
	number := s.core.State().Job(job).NextEpoch
	s.run(fmt.Sprintf("open client=%s request=open-%s-%d job=%s", client, job, number, job))
	epoch := durable.FindEpoch(s.core.State().Job(job), number)
	if epoch == nil {
		s.t.Fatalf("epoch %d of %s is not open", number, job)
	}
	return epoch
}

func (s *script) close(client string, epoch *durable.Epoch) {
	s.run(fmt.Sprintf("close client=%s job=%s epoch=%d", client, epoch.Job.JobId, epoch.Epoch))
}

func ofStream(epoch *durable.Epoch, stream uint32) string {
	return fmt.Sprintf("stream=%s/%d/%d lease=%d", epoch.Job.JobId, epoch.Epoch, stream, epoch.Stream(stream).Lease)
}

// deliver reads an epoch to its end, and closes it.
func (s *script) deliver(client string, epoch *durable.Epoch) {
	s.t.Helper()
	for stream := range uint32(2) {
		s.run("ended session=1 " + ofStream(epoch, stream) + " count=10")
		s.run("finish client=" + client + " " + ofStream(epoch, stream) + " count=10")
	}
	if !epoch.Delivered() {
		s.t.Fatalf("epoch %d is not delivered", epoch.Epoch)
	}
	s.close(client, epoch)
}

// fail fails a stream for good, and closes the epoch.
func (s *script) fail(client string, epoch *durable.Epoch, stream uint32) {
	s.t.Helper()
	s.run("failed session=1 " + ofStream(epoch, stream) + " code=3 message=no_such_file")
	if epoch.Error == nil {
		s.t.Fatalf("epoch %d has not failed", epoch.Epoch)
	}
	s.close(client, epoch)
}

// O8: the epochs of one job fail in an order again and again. The second failure is final, also if the epoch with the first one
// belongs to the job, and if the order was adopted meanwhile.
func TestO8AnOrderThatFailsAgainInItsJobIsRolledBackForGood(t *testing.T) {
	const borneOut = "metrics session=1 job=j1 nodes=Crop:2000:0.5,Jitter:2000:26 ordered=Crop:900:0.2,Jitter:900:6"
	for name, isAdopted := range map[string]bool{"in its second pilot": false, "after its adoption": true} {
		t.Run(name, func(t *testing.T) {
			s := newScript(t)
			s.runAll(untilPiloted...)
			s.close("a", durable.FindEpoch(s.core.State().Job("j1"), 0))
			s.fail("a", s.open("a", "j1"), 0)
			if state := s.orderState("j1"); state != "rolled back" {
				t.Fatalf("after a failure the order is %s", state)
			}
			s.deliver("a", s.open("a", "j1"))
			if state := s.orderState("j1"); state != "piloted" {
				t.Fatalf("after an epoch without a failure the order is %s", state)
			}
			epoch := s.open("a", "j1")
			if isAdopted {
				s.runAll(borneOut, "wait 1s")
				s.close("a", epoch)
				epoch = s.open("a", "j1")
				if state := s.orderState("j1"); state != "adopted" || !epoch.WhollyOrdered() {
					t.Fatalf("after it was borne out the order is %s", state)
				}
			}
			s.fail("a", epoch, 0)
			for range 2 {
				epoch := s.open("a", "j1")
				if state := s.orderState("j1"); state != "rolled back" || len(epoch.Order) > 0 {
					t.Fatalf("after a second failure the order is %s, and epoch %d has %v", state, epoch.Epoch, epoch.Order)
				}
				s.deliver("a", epoch)
			}
			s.run("job client=b request=r2 dataset=f1 streams=2 order=auto hash=h cardinality=100000")
			if epoch := s.open("b", "j2"); len(epoch.Order) > 0 {
				t.Error("a later job has the order")
			}
			s.checkReplay()
		})
	}
}

// A failure in the registered order excuses one failure in the order that follows it, and not all later ones.
func TestAFailureInTheRegisteredOrderExcusesTheNextOneOnly(t *testing.T) {
	s := newScript(t)
	s.runAll(untilPiloted...)
	s.close("a", durable.FindEpoch(s.core.State().Job("j1"), 0))
	s.fail("a", s.open("a", "j1"), 1)
	for _, want := range []string{"piloted", "rolled back"} {
		epoch := s.open("a", "j1")
		if !durable.HasOrder(epoch, 0) {
			t.Fatalf("epoch %d has the order in %v", epoch.Epoch, epoch.OrderStreams)
		}
		s.run("failed session=1 " + ofStream(epoch, 0) + " code=3 message=no_such_file")
		data, err := s.core.State().Marshal()
		if err != nil {
			t.Fatal(err)
		}
		if restored, err := durable.Restore(data); err != nil || !durable.FindEpoch(restored.Job("j1"), epoch.Epoch).FailedInOrder {
			t.Errorf("a snapshot does not say in which order epoch %d failed (%v)", epoch.Epoch, err)
		}
		s.close("a", epoch)
		if state := s.orderState("j1"); state != want {
			t.Fatalf("after epoch %d failed in the order, it is %s, want %s", epoch.Epoch, state, want)
		}
	}
	s.checkReplay()
}

// An order is rolled back for good if elements fail only in it, or if it costs more. No epoch without a failure brings it
// back.
func TestAnOrderThatIsRolledBackForACauseDoesNotReturn(t *testing.T) {
	for name, cause := range map[string]string{
		"failed elements": "metrics session=1 job=j1 nodes=Crop:400:0.1,Jitter:400:5 failed=1 ordered-failed=1",
		"higher costs":    "metrics session=1 job=j1 nodes=Crop:1000:0.25,Jitter:1000:12 ordered=Crop:300:0.1,Jitter:300:5",
	} {
		for _, restarts := range []bool{false, true} {
			s := newScript(t)
			s.runAll(untilPiloted...)
			epoch := s.open("a", "j1")
			s.runAll(cause, "wait 1s")
			if restarts {
				s.runAll("restart", "hello session=1 worker=w1 slots=8 cluster=c")
				epoch = durable.FindEpoch(s.core.State().Job("j1"), epoch.Epoch)
			}
			s.close("a", epoch)
			for range 2 {
				epoch := s.open("a", "j1")
				if state := s.orderState("j1"); state != "rolled back" || len(epoch.Order) > 0 {
					t.Fatalf("%s: the order is %s, and epoch %d has %v", name, state, epoch.Epoch, epoch.Order)
				}
				s.deliver("a", epoch)
			}
			s.checkReplay()
		}
	}
}

// A later job has the order in all streams, so nobody sees at first that a damaged element fails in the registered order too. The order
// returns once somebody does, and such elements do not count against it any more.
func TestARolledBackOrderReturnsToProductionIfElementsFailInBothOrders(t *testing.T) {
	const borneOut = "metrics session=1 job=j1 nodes=Crop:2000:0.5,Jitter:2000:26 ordered=Crop:900:0.2,Jitter:900:6"
	s := newScript(t)
	s.runAll(untilPiloted...)
	s.open("a", "j1")
	s.runAll(borneOut, "wait 1s", "goodbye client=a")
	job := func(client string) {
		s.run(fmt.Sprintf("job client=%s request=r dataset=f1 streams=2 order=auto hash=h cardinality=100000", client))
	}
	job("b")
	epoch := s.open("b", "j2")
	s.run("metrics session=1 job=j2 nodes=Crop:400:0.1 ordered=Crop:400:0.1 failed=1 ordered-failed=1")
	s.deliver("b", epoch)
	if state := s.orderState("j2"); !epoch.WhollyOrdered() || state != "rolled back" {
		t.Fatalf("after an element failed, the order is %s", state)
	}
	s.deliver("b", s.open("b", "j2"))
	if state := s.orderState("j2"); state != "rolled back" {
		t.Fatalf("after an epoch without a failed element, the order is %s", state)
	}
	epoch = s.open("b", "j2")
	s.run("metrics session=1 job=j2 nodes=Crop:800:0.2 ordered=Crop:400:0.1 failed=2 ordered-failed=1")
	s.run("restart")
	s.runAll("hello session=1 worker=w1 slots=8 cluster=c", "metrics session=1 job=j2 nodes=Crop:800:0.2 ordered=Crop:400:0.1 failed=2 ordered-failed=1")
	s.deliver("b", durable.FindEpoch(s.core.State().Job("j2"), epoch.Epoch))
	if state := s.orderState("j2"); state != "piloted" {
		t.Fatalf("after an element failed in the registered order too, the order is %s", state)
	}
	s.run("goodbye client=b")
	job("d")
	s.open("d", "j3")
	s.runAll("metrics session=1 job=j3 nodes=Crop:400:0.1,Jitter:400:5 failed=1 ordered-failed=1", "wait 1s")
	if state := s.orderState("j3"); state != "piloted" {
		t.Errorf("after an element failed in a later job, the order is %s", state)
	}
	s.checkReplay()
}

// A trainer may end at the first element that fails, and its job with it, before the order is judged.
func TestAJobThatEndsWithAFailedElementRollsItsOrderBack(t *testing.T) {
	for name, end := range map[string]string{"the trainer leaves": "goodbye client=a", "it closes the epoch": "close client=a job=j1 epoch=1"} {
		s := newScript(t)
		s.runAll(untilPiloted...)
		s.open("a", "j1")
		s.runAll("metrics session=1 job=j1 nodes=Crop:400:0.1,Jitter:400:5 failed=1 ordered-failed=1", end)
		s.run("job client=b request=r2 dataset=f1 streams=2 order=auto hash=h cardinality=100000")
		if epoch := s.open("b", "j2"); len(epoch.Order) > 0 || s.orderState("j2") != "rolled back" {
			t.Errorf("%s: the order is %s, and the next job has %v", name, s.orderState("j2"), epoch.Order)
		}
		s.checkReplay()
	}
}

// A job that ends while its order is tried decides nothing. The next one has a trial of its own.
func TestAJobThatEndsInATrialDecidesNothing(t *testing.T) {
	s := newScript(t)
	s.runAll(untilPiloted[:8]...)
	s.runAll("goodbye client=a", "tried session=1 id=1-1 elements=40 original=0.0127 ordered=0.004", "wait 1s")
	if decided := s.core.State().Snapshot().Orders; len(decided) > 0 {
		t.Fatalf("decided: %v", decided)
	}
	s.runAll("job client=b request=r2 dataset=f1 streams=2 order=auto hash=h cardinality=100000", "open client=b request=o1 job=j2", "worker-heartbeat session=1",
		"metrics session=1 job=j2 nodes=Crop:400:0.1,Jitter:400:5", "wait 1s")
	shown := strings.Join(s.run(strings.Replace(plannedOrder, "asked=1", "asked=2", 1)), "\n")
	if !strings.Contains(shown, "try 1-2") {
		t.Errorf("the second job: %s", shown)
	}
	s.run("tried session=1 id=1-1 elements=40 original=0.0127 ordered=0.004")
	if state := s.orderState("j2"); state != "proposed" {
		t.Errorf("after a late answer to the first trial the order is %s", state)
	}
	s.run("tried session=1 id=1-2 elements=40 original=0.0127 ordered=0.004")
	if state := s.orderState("j2"); state != "piloted" {
		t.Errorf("after the second trial the order is %s", state)
	}
	s.checkReplay()
}

// The epoch fails while a worker tries its order. The trial counts: it says nothing of the epoch.
func TestAnEpochThatFailsDuringATrial(t *testing.T) {
	s := newScript(t)
	s.runAll(untilPiloted[:8]...)
	s.fail("a", durable.FindEpoch(s.core.State().Job("j1"), 0), 0)
	s.run("tried session=1 id=1-1 elements=40 original=0.0127 ordered=0.004")
	epoch := s.open("a", "j1")
	if state := s.orderState("j1"); state != "piloted" || !durable.HasOrder(epoch, 0) || durable.HasOrder(epoch, 1) {
		t.Errorf("the order is %s, and epoch 1 has it in %v", state, epoch.OrderStreams)
	}
	s.checkReplay()
}

// A pilot in an open epoch needs a reader. Epochs of failed jobs, and those that nobody reads, are left out.
func TestAPilotIsInAnEpochThatIsRead(t *testing.T) {
	s := newScript(t)
	s.runAll("start cluster=c", "dataset fingerprint=f1", "hello session=1 worker=w1 slots=2")
	for n, name := range []string{"left", "read"} {
		s.run(fmt.Sprintf("job client=%s request=r dataset=f1 name=%s streams=4 order=auto hash=h cardinality=100000", name, name))
		s.run(fmt.Sprintf("open client=%s request=o job=j%d pass=0", name, n+1))
	}
	s.runAll("metrics session=1 job=j2 nodes=Crop:400:0.1,Jitter:400:5", "wait 1s", plannedOrder)
	s.runAll("goodbye client=left", "tried session=1 id=1-1 elements=40 original=0.0127 ordered=0.004", "metrics session=1 job=j1 nodes=Crop:10:0.1,Jitter:10:5", "wait 1s")
	if epochs := [][]uint32{s.core.State().Job("j1").Epochs[0].OrderStreams, s.core.State().Job("j2").Epochs[0].OrderStreams}; len(epochs[0]) > 0 || len(epochs[1]) != 1 {
		t.Errorf("the order is in streams %v", epochs)
	}
	s.checkReplay()
}

// Earlier versions piloted an order again although its rollback is final. Their journals are read.
func TestAJournalThatPilotsAnOrderAgainIsRead(t *testing.T) {
	s := newScript(t)
	s.runAll(untilPiloted...)
	s.open("a", "j1")
	s.runAll("metrics session=1 job=j1 nodes=Crop:1000:0.25,Jitter:1000:12 ordered=Crop:300:0.1,Jitter:300:5", "wait 1s")
	decided := s.core.State().Snapshot().Orders[0]
	err := s.core.State().Apply(&pecanv1.Record{Kind: &pecanv1.Record_OrderJudged{OrderJudged: &pecanv1.OrderJudged{
		Fingerprint: decided.Fingerprint, Policy: decided.Policy, Tolerance: decided.Tolerance, PlanHash: decided.PlanHash, Stage: pecanv1.OrderStage_ORDER_STAGE_PILOTED,
	}}})
	if err != nil || s.orderState("j1") != "piloted" {
		t.Errorf("the order is %s (%v)", s.orderState("j1"), err)
	}
}
