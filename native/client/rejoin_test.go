package client

import (
	"context"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pecan-ml/pecan/proto/frame"
	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/proto/reason"
)

// rejoiningJob creates a rejoining job in the session of an ordinary job.
func rejoiningJob(t *testing.T, d *testDispatcher, dataset *Dataset) *RejoiningJob {
	t.Helper()
	r, err := open(t, d).session.CreateRejoiningJob(context.Background(), JobSpec{DatasetID: "f1"}, dataset)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// count reads elements until the end or an error.
func (i *RejoiningIteration) countAll(t *testing.T) (int, error) {
	t.Helper()
	n := 0
	for deadline := time.Now().Add(testDeadline); time.Now().Before(deadline); {
		elements, status, err := i.NextElement(50 * time.Millisecond)
		switch status {
		case Ready:
			elements.Release()
			n++
		case Failed, Broken:
			return n, err
		case End:
			return n, nil
		}
	}
	t.Fatalf("nothing more after %d elements", n)
	return n, nil
}

func TestAJobThatTheDispatcherLostIsRecreated(t *testing.T) {
	t.Run("when the iteration that was under way asks first", func(t *testing.T) { testLostJob(t, false) })
	t.Run("when another iteration has it made", func(t *testing.T) { testLostJob(t, true) })
}

func testLostJob(t *testing.T, waitingFirst bool) {
	hold := make(chan struct{})
	d := startDispatcher(t)
	w := startWorker(t, func(epoch uint64, _ uint32) (testStream, bool) {
		if epoch == 1 {
			return testStream{count: 10, hold: hold, holdAt: 5}, true
		}
		return testStream{count: 10}, true
	})
	d.updateOf = spread(1, w)
	r := rejoiningJob(t, d, &Dataset{Graph: []byte("graph"), Spec: &pecanv1.DatasetSpec{}})
	first := r.Job()
	if n, err := r.Open(IterOptions{NoPrefetch: true}).countAll(t); n != 10 || err != nil {
		t.Fatalf("%d elements, %v", n, err)
	}
	begun := r.Open(IterOptions{NoPrefetch: true})
	for n := 0; n < 5; {
		elements, status, err := begun.NextElement(testDeadline)
		if status != Ready {
			t.Fatal(status, err)
		}
		elements.Release()
		n++
	}
	waiting := r.Open(IterOptions{NoPrefetch: true})
	d.restart()
	checks := []func(){func() {
		close(hold)
		if n, err := begun.countAll(t); n != 5 || err != nil {
			t.Errorf("the iteration that was under way gave %d more elements and %v", n, err)
		}
	}, func() {
		// No element of this stream had been dequeued.
		if n, err := waiting.countAll(t); n != 10 || err != nil {
			t.Errorf("%d elements, %v", n, err)
		}
	}}
	if waitingFirst {
		slices.Reverse(checks)
	}
	for _, check := range checks {
		check()
	}
	for range 2 {
		if n, err := r.Open(IterOptions{NoPrefetch: true}).countAll(t); n != 10 || err != nil {
			t.Errorf("%d elements, %v", n, err)
		}
	}
	if uploads := look(d, func() [][]byte { return d.uploads }); len(uploads) != 1 || string(uploads[0]) != "graph" {
		t.Errorf("uploads %q", uploads)
	}
	if r.Job() == first {
		t.Error("the job is the same")
	}
	for _, it := range []*RejoiningIteration{begun, waiting} {
		if err := it.Close(); err != nil {
			t.Error(err)
		}
	}
}

// L2: a dispatcher counts the epochs of a recreated job from 0. Read epochs do not come again: the first iteration of the
// recreated job requests its epoch by number, and later iterations continue from it.
func TestAJobThatIsRecreatedBetweenPassesContinuesWithTheNextEpoch(t *testing.T) {
	d := startDispatcher(t)
	d.updateOf = spread(1, startWorker(t, same(testStream{count: 10})))
	d.plan = &pecanv1.Plan{NumStreams: 1, Repeat: 1, Hash: "h", Cardinality: -2, AssertedCardinality: -2}
	r := rejoiningJob(t, d, &Dataset{Graph: []byte("graph"), Spec: &pecanv1.DatasetSpec{}})
	read := func(its ...*RejoiningIteration) {
		t.Helper()
		for _, it := range its {
			if n, err := it.countAll(t); n != 10 || err != nil {
				t.Fatalf("%d elements, %v", n, err)
			}
		}
	}
	pass := func() *RejoiningIteration { return r.Open(IterOptions{NoPrefetch: true}) }
	read(pass())
	read(pass())
	d.restart()
	d.update(func() { d.epochs = 0 })
	first, second := pass(), pass()
	read(first, second)
	read(pass())
	var numbers []uint64
	for _, request := range look(d, func() []*pecanv1.OpenEpochRequest { return d.opened })[2:] {
		if request.GetPosition() != nil {
			numbers = append(numbers, request.GetPosition().GetEpoch())
		}
	}
	if !slices.Equal(numbers, []uint64{2}) {
		t.Errorf("epochs %v were asked for by number, want 2 alone", numbers)
	}
	if epochs := look(d, func() uint64 { return d.epochs }); epochs != 5 {
		t.Errorf("the next epoch is %d behind five passes", epochs)
	}
}

// An iteration that recreates the job does not take the epoch of another iteration. The other iteration continues with
// the elements that it has received.
func TestIterationsOfALostJobKeepTheirEpochs(t *testing.T) {
	d := startDispatcher(t)
	hold, held := make(chan struct{}), atomic.Bool{}
	d.updateOf = spread(1, startWorker(t, func(epoch uint64, _ uint32) (testStream, bool) {
		if epoch == 1 && held.CompareAndSwap(false, true) {
			return testStream{count: 10, hold: hold, holdAt: 5}, true
		}
		return testStream{count: 10}, true
	}))
	t.Cleanup(func() { close(hold) })
	r := rejoiningJob(t, d, &Dataset{Graph: []byte("graph"), Spec: &pecanv1.DatasetSpec{}})
	if n, err := r.Open(IterOptions{NoPrefetch: true}).countAll(t); n != 10 || err != nil {
		t.Fatalf("%d elements, %v", n, err)
	}
	slow := r.Open(IterOptions{NoPrefetch: true})
	for e := slow.it.epoch(); ; time.Sleep(time.Millisecond) {
		if e.State().Accepted == 5 {
			break
		}
	}
	lost := r.Job()
	d.restart()
	for !lost.isLost() {
		time.Sleep(time.Millisecond)
	}
	if n, err := r.Open(IterOptions{NoPrefetch: true}).countAll(t); n != 10 || err != nil {
		t.Errorf("%d elements, %v", n, err)
	}
	if n, err := slow.countAll(t); n != 10 || err != nil {
		t.Errorf("%d elements of the one that had begun, %v", n, err)
	}
}

// D4: the dispatcher starts from an old copy of its work directory, and no worker has newer state. Its updates are older
// than the trainer's position, or the epoch is unknown. The job is recreated and continues at the trainer's position.
func TestATrainerContinuesWhenTheStoreIsStale(t *testing.T) {
	for name, epochUnknown := range map[string]bool{"it reports older leases": false, "it does not know the epoch yet": true} {
		t.Run(name, func(t *testing.T) {
			d := startDispatcher(t, func(d *testDispatcher) { d.durable = true })
			// Half of the elements arrive before the worker disappears.
			w := startWorker(t, same(testStream{count: 10}), func(w *testWorker) {
				w.hook = func(h *frame.Header, _, _ *[]byte) bool { return h.Type != frame.Data || h.Index < 5 }
			})
			lease := uint64(7)
			d.updateOf = func(epoch uint64) *pecanv1.EpochUpdate {
				u := spread(1, w)(epoch)
				u.Streams[0].Lease = lease
				return u
			}
			r := rejoiningJob(t, d, nil)
			it := r.Open(IterOptions{NoPrefetch: true})
			for range 5 {
				elements, status, err := it.NextElement(testDeadline)
				if status != Ready {
					t.Fatal(status, err)
				}
				elements.Release()
			}
			first := r.Job()
			w.stop()
			other := startWorker(t, same(testStream{count: 10}))
			d.update(func() {
				w, lease, d.epochUnknown = other, 3, epochUnknown
			})
			if n, err := it.countAll(t); n != 5 || err != nil {
				t.Errorf("%d elements more, %v", n, err)
			}
			if r.Job() == first {
				t.Error("the job is the same")
			}
		})
	}
}

// A dispatcher may be restarted with an empty work directory.
func TestADurableJobThatTheDispatcherLostIsRecreated(t *testing.T) {
	d := startDispatcher(t, func(d *testDispatcher) { d.durable = true })
	d.updateOf = spread(1, startWorker(t, same(testStream{count: 10})))
	r := rejoiningJob(t, d, &Dataset{Graph: []byte("graph"), Spec: &pecanv1.DatasetSpec{}})
	if !r.Job().Durable() {
		t.Fatal("the job is not durable")
	}
	d.restart()
	if n, err := r.Open(IterOptions{NoPrefetch: true}).countAll(t); n != 10 || err != nil {
		t.Errorf("%d elements, %v", n, err)
	}
}

// Another dispatcher may serve at a known address. Its workers accept only requests of their own cluster.
func TestAJobBelongsToTheDispatchersCurrentCluster(t *testing.T) {
	d := startDispatcher(t)
	r := rejoiningJob(t, d, nil)
	d.mu.Lock()
	d.cluster = "another"
	greeted := d.statuses
	d.mu.Unlock()
	job, err := r.session.CreateJob(t.Context(), JobSpec{DatasetID: "dataset"})
	if err != nil || r.session.link.ClusterID() != "another" {
		t.Fatalf("%v, and the cluster is still %s", err, r.session.link.ClusterID())
	}
	if more := look(d, func() int { return d.statuses }) - greeted; more != 0 {
		t.Errorf("%d calls more than the one that creates the job", more)
	}
	if err := job.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestAStateLoadsWhenTheDispatcherLostTheDataset(t *testing.T) {
	d := startDispatcher(t)
	d.updateOf = spread(1, startWorker(t, same(testStream{count: 10})))
	r := rejoiningJob(t, d, &Dataset{Graph: []byte("graph"), Spec: &pecanv1.DatasetSpec{}})
	text, err := r.Save(0, 0, false)
	if err != nil {
		t.Fatal(err)
	}
	d.restart()
	if err := r.Load(context.Background(), text); err != nil {
		t.Fatal(err)
	}
	if n, err := r.Open(IterOptions{NoPrefetch: true}).countAll(t); n != 10 || err != nil {
		t.Errorf("%d elements, %v", n, err)
	}
}

func TestAJobIsNotRecreatedWithoutItsDataset(t *testing.T) {
	for name, c := range map[string]struct {
		dataset *Dataset
		change  func(*testDispatcher)
		want    reason.Reason
	}{
		"the graph is not at hand":             {nil, func(*testDispatcher) {}, reason.DatasetUnknown},
		"the dataset is divided in other ways": {&Dataset{Graph: []byte("g")}, func(d *testDispatcher) { d.plan = &pecanv1.Plan{Hash: "other", Repeat: 1} }, reason.JobUnknown},
	} {
		t.Run(name, func(t *testing.T) {
			d := startDispatcher(t)
			d.updateOf = spread(1, startWorker(t, same(testStream{count: 10})))
			r := rejoiningJob(t, d, c.dataset)
			d.restart()
			d.update(func() { c.change(d) })
			for range 2 {
				it := r.Open(IterOptions{NoPrefetch: true})
				if n, err := it.countAll(t); n != 0 || !reason.Is(err, c.want) {
					t.Errorf("%d elements, %v, want %s", n, err, c.want)
				}
				if err := it.Close(); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

func TestWaitingReportsThatTheJobIsBeingRecreated(t *testing.T) {
	d := startDispatcher(t)
	d.updateOf = spread(1, startWorker(t, same(testStream{count: 10})))
	r := rejoiningJob(t, d, &Dataset{Graph: []byte("graph"), Spec: &pecanv1.DatasetSpec{}})
	lost := r.Job()
	d.restart()
	eventually(t, "the job is lost", lost.isLost)
	d.stop()
	it := r.Open(IterOptions{NoPrefetch: true})
	if _, status, err := it.NextElement(20 * time.Millisecond); status != NotYet {
		t.Fatal(status, err)
	}
	why, computing := it.Waiting()
	for _, words := range []string{"job " + lost.ID(), "dispatcher at " + d.addr, "recreating"} {
		if !strings.Contains(why, words) {
			t.Errorf("waiting for %q, which lacks %q", why, words)
		}
	}
	if computing {
		t.Error("computing is true, but no worker computes")
	}
	d.listen(d.addr)
	if n, err := it.countAll(t); n != 10 || err != nil {
		t.Errorf("%d elements, %v", n, err)
	}
	if why, _ := it.Waiting(); why != "" {
		t.Errorf("at the end it waits for %q", why)
	}
}
