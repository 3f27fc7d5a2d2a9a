package client

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/pecan-ml/pecan/native/client/epoch"
	"github.com/pecan-ml/pecan/native/client/wait"
	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/proto/reason"
)

func TestAFailedElementIsSkipped(t *testing.T) {
	w := startWorker(t, same(testStream{count: 20, perFrame: 4, failAt: map[uint64]bool{0: true, 7: true, 8: true, 19: true}}))
	d := startDispatcher(t)
	d.updateOf = spread(1, w)
	it := open(t, d).Open(IterOptions{})
	all, err := read(t, it)
	if err != nil {
		t.Fatal(err)
	}
	failed := 0
	for i, g := range all {
		if g.err != nil {
			failed++
			if !strings.Contains(g.err.Error(), "failed") || i != 0 && i != 7 && i != 8 && i != 19 {
				t.Errorf("place %d: %v", i, g.err)
			}
		} else if g.index != uint64(i) {
			t.Errorf("place %d has element %d", i, g.index)
		}
	}
	if stats := it.Stats(); len(all) != 20 || failed != 4 || stats.Failed != 4 || stats.Elements != 16 {
		t.Errorf("%d places, %d failed, %+v", len(all), failed, stats)
	}
}

// halfRead returns an epoch of which six elements have arrived and no more will. fail lets the dispatcher end the epoch.
func halfRead(t *testing.T) (w *testWorker, it *Iteration, e *epoch.Epoch, fail func(*reason.Error)) {
	t.Helper()
	hold := make(chan struct{})
	w = startWorker(t, same(testStream{count: 10, hold: hold, holdAt: 6}))
	t.Cleanup(func() { close(hold) })
	d := startDispatcher(t)
	var failure *pecanv1.ErrorDetail
	d.updateOf = func(uint64) *pecanv1.EpochUpdate {
		u := spread(1, w)(0)
		u.Error = failure
		return u
	}
	it = open(t, d).Open(IterOptions{})
	eventually(t, "six elements have come", func() bool {
		e = it.epoch()
		return e.State().Accepted == 6
	})
	return w, it, e, func(why *reason.Error) { d.update(func() { failure = why.Detail() }) }
}

func TestAFailedEpochReturnsReceivedElementsAndThenItsError(t *testing.T) {
	_, it, _, fail := halfRead(t)
	fail(reason.New(reason.FileNotVisible, "worker w cannot see /data/x"))
	all, err := read(t, it)
	if len(all) != 6 || !reason.Is(err, reason.FileNotVisible) {
		t.Errorf("%d elements, then %v", len(all), err)
	}
	if _, status, again := it.NextElement(0); status != Broken || !errors.Is(again, err) {
		t.Errorf("asked again: %v, %v", status, again)
	}
}

func TestAFailedEpochIsNotRequestedAgain(t *testing.T) {
	w, _, e, fail := halfRead(t)
	fail(reason.New(reason.ElementPoison, "three workers died"))
	eventually(t, "it has failed", func() bool { return e.Failure() != nil })
	w.cut()
	eventually(t, "its worker is gone", func() bool { return !e.State().Streams[0].Open })
	opens := w.opens.Load()
	time.Sleep(10 * wait.FirstPause)
	if e.State().Streams[0].Open || w.opens.Load() > opens {
		t.Error("its worker is dialled again")
	}
}

func TestAnElementUnlikeTheSpecIsAnErrorAtItsPlace(t *testing.T) {
	for name, tc := range map[string]struct {
		spec   *pecanv1.ComponentSpec
		stream testStream
		fails  bool
	}{
		"another dtype":             {spec: &pecanv1.ComponentSpec{Dtype: 1}, stream: testStream{count: 3}, fails: true},
		"another rank":              {spec: &pecanv1.ComponentSpec{Dtype: 9, Dims: []int64{-1}}, stream: testStream{count: 3}, fails: true},
		"another rank, in blocks":   {spec: &pecanv1.ComponentSpec{Dtype: 9, Dims: []int64{-1}}, stream: testStream{count: 3, perFrame: 1}, fails: true},
		"another size":              {spec: &pecanv1.ComponentSpec{Dtype: 9, Dims: []int64{1}}, stream: testStream{count: 3}, fails: true},
		"more components":           {spec: &pecanv1.ComponentSpec{Dtype: 9}, stream: testStream{count: 3, pad: 4}, fails: true},
		"the same":                  {spec: &pecanv1.ComponentSpec{Dtype: 9}, stream: testStream{count: 3}},
		"unknown rank takes it all": {spec: &pecanv1.ComponentSpec{Dtype: 9, UnknownRank: true}, stream: testStream{count: 3}},
	} {
		t.Run(name, func(t *testing.T) {
			d := startDispatcher(t, func(d *testDispatcher) { d.plan.Components = []*pecanv1.ComponentSpec{tc.spec} })
			d.updateOf = spread(1, startWorker(t, same(tc.stream)))
			it := open(t, d).Open(IterOptions{})
			failed := 0
			for {
				elements, status, err := it.NextElement(time.Second)
				elements.Release()
				if status == End {
					break
				}
				if status == NotYet || status == Broken {
					t.Fatal("nothing came", err)
				}
				if status == Failed {
					failed++
					if !reason.Is(err, reason.ElementSpec) || !strings.Contains(err.Error(), "stream 0") {
						t.Fatal(err)
					}
				}
			}
			if want := map[bool]int{true: 3}[tc.fails]; failed != want {
				t.Errorf("%d elements failed, want %d", failed, want)
			}
		})
	}
}

func TestAnElementAboveTheLimitIsAnErrorAtItsPlace(t *testing.T) {
	for name, change := range map[string][]func(*testWorker){"TCP": nil, "shared memory": {withUnix}} {
		t.Run(name, func(t *testing.T) {
			d := startDispatcher(t, func(d *testDispatcher) { d.options.MaxElementBytes = 1000 })
			d.updateOf = spread(1, startWorker(t, same(testStream{count: 5, pad: 1000}), change...))
			it := open(t, d).Open(IterOptions{})
			for range 5 {
				elements, status, err := it.NextElement(5 * time.Second)
				elements.Release()
				if status != Failed || !reason.Is(err, reason.ElementTooLarge) || !strings.Contains(err.Error(), "1008 bytes") {
					t.Fatalf("%v, %v", status, err)
				}
			}
			if _, status, _ := it.NextElement(5 * time.Second); status != End {
				t.Errorf("then %v", status)
			}
		})
	}
}
