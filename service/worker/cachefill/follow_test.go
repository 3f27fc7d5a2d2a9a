package cachefill

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
)

// A stream asks before it computes a part. It waits only as long as computing takes.
func TestAStreamWaitsForAPartAsLongAsItWouldCompute(t *testing.T) {
	const key = "k"
	id := &pecanv1.StreamId{JobId: "j", Epoch: 2, Stream: 3}
	stored := &pecanv1.CacheSegment{Key: key, Part: 5, Name: "n"}
	type answer struct {
		after   time.Duration
		wait    bool
		segment *pecanv1.CacheSegment
	}
	for name, c := range map[string]struct {
		took    time.Duration
		answers []answer
		reads   bool
		waits   time.Duration
		vain    bool
	}{
		"nobody else computes it":                {answers: []answer{{}}},
		"it is stored":                           {answers: []answer{{segment: stored}}, reads: true},
		"it is stored later":                     {answers: []answer{{wait: true}, {after: 8 * time.Second, segment: stored}}, reads: true, waits: 8 * time.Second},
		"its worker does not store it":           {answers: []answer{{wait: true}, {after: 3 * time.Second}}, waits: 3 * time.Second},
		"the dispatcher does not answer":         {waits: answerWait, vain: true},
		"its worker hangs":                       {answers: []answer{{wait: true}}, waits: leastFollow, vain: true},
		"its worker hangs, parts take long":      {took: time.Minute, answers: []answer{{wait: true}}, waits: time.Minute, vain: true},
		"its worker hangs, parts take very long": {took: time.Hour, answers: []answer{{wait: true}}, waits: mostFollow, vain: true},
		"it is stored late, parts take long":     {took: time.Minute, answers: []answer{{wait: true}, {after: 50 * time.Second, segment: stored}}, reads: true, waits: 50 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := &Directory{}
				asks, sure := 0, false
				d.Send = func(messages ...*pecanv1.WorkerMessage) {
					asks += len(messages)
					ask := messages[0].GetAskCachePart()
					sure = ask.NeverWaits
					go func() {
						for _, a := range c.answers {
							time.Sleep(a.after)
							d.Answer(&pecanv1.CachePart{Id: ask.Id, Lease: ask.Lease + 1, Part: ask.Part, Segment: &pecanv1.CacheSegment{Name: "of another lease"}})
							d.Answer(&pecanv1.CachePart{Id: ask.Id, Lease: ask.Lease, Part: ask.Part, Wait: a.wait, Segment: a.segment})
						}
					}()
				}
				if c.took > 0 {
					d.follower.computed(key, c.took)
				}
				ask := func() (*pecanv1.CacheSegment, time.Duration) {
					began := time.Now()
					found := d.segmentOf(t.Context(), &pecanv1.AskCachePart{Id: id, Lease: 7, Key: key, Part: 5})
					return found, time.Since(began)
				}
				found, waited := ask()
				if (found != nil) != c.reads || found != nil && found.Name != "n" || waited != c.waits {
					t.Errorf("found %v after %v", found, waited)
				}
				synctest.Wait()
				// After a wait in vain, no stream waits for a while, but each says what it computes.
				if _, again := ask(); asks != 2 || sure != c.vain || c.vain && again > 0 {
					t.Errorf("%d questions, %v for the second one, which never waits: %v", asks, again, sure)
				}
				time.Sleep(vainPause)
				if ask(); asks != 3 || sure {
					t.Error("no stream waits any more")
				}
				if len(d.follower.answers) > 0 {
					t.Error("a question is left")
				}
			})
		})
	}
}

// The answers to questions of an earlier session do not come. The part is computed, and the next question waits again.
func TestANewSessionEndsTheWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &Directory{}
		d.Send = func(messages ...*pecanv1.WorkerMessage) {
			ask := messages[0].GetAskCachePart()
			d.Answer(&pecanv1.CachePart{Id: ask.Id, Lease: ask.Lease, Part: ask.Part, Wait: true})
		}
		for range 2 {
			began := time.Now()
			time.AfterFunc(time.Second, d.Resend)
			if found := d.segmentOf(t.Context(), &pecanv1.AskCachePart{Key: "k"}); found != nil || time.Since(began) != time.Second {
				t.Errorf("found %v after %v", found, time.Since(began))
			}
		}
	})
}

func TestAStreamThatStopsWaitsNoLonger(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &Directory{Send: func(...*pecanv1.WorkerMessage) {}}
		ctx, cancel := context.WithTimeout(t.Context(), answerWait/2)
		defer cancel()
		began := time.Now()
		if found := d.segmentOf(ctx, &pecanv1.AskCachePart{Key: "k"}); found != nil || time.Since(began) != answerWait/2 {
			t.Errorf("found %v after %v", found, time.Since(began))
		}
		if len(d.follower.vain) > 0 {
			t.Error("the end of a stream counts as a wait in vain")
		}
	})
}

// Two runs of a stream ask with one lease. The end of the first one's wait takes no answer from the second one.
func TestTwoRunsMayAskForOnePart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &Directory{Send: func(...*pecanv1.WorkerMessage) {}}
		first, cancel := context.WithTimeout(t.Context(), answerWait/2)
		defer cancel()
		var asks sync.WaitGroup
		ask := &pecanv1.AskCachePart{Key: "k"}
		asks.Go(func() { d.segmentOf(first, ask) })
		synctest.Wait()
		asks.Go(func() {
			if found := d.segmentOf(t.Context(), ask); found.GetName() != "n" {
				t.Errorf("found %v", found)
			}
		})
		time.Sleep(answerWait * 3 / 4)
		d.Answer(&pecanv1.CachePart{Segment: &pecanv1.CacheSegment{Name: "n"}})
		asks.Wait()
	})
}
