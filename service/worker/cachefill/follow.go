package cachefill

import (
	"context"
	"sync"
	"time"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
)

const (
	// answerWait bounds the wait for the dispatcher's first answer.
	answerWait = time.Second
	// leastFollow and mostFollow bound how long a stream waits for another worker, before it computes a part itself. Between them, it
	// waits as long as the worker last needed to compute a part of the cache.
	leastFollow = 10 * time.Second
	mostFollow  = time.Minute
	// vainPause is for how long no stream waits for parts of a cache after a wait in vain. Streams still say what they compute.
	vainPause = 30 * time.Second
	// mostKeys bounds the caches of which a worker remembers times.
	mostKeys = 1000
)

// follower asks the dispatcher which worker computes a part.
type follower struct {
	mu sync.Mutex
	// answers has the channels of the streams that wait.
	answers map[asked]chan *pecanv1.CachePart
	// took is how long the last computed part of a cache took. vain is when a stream last waited in vain.
	took map[string]time.Duration
	vain map[string]time.Time
}

// asked is a part for which a stream waits.
type asked struct {
	id    pecanv1.StreamKey
	lease uint64
	part  uint32
}

// Answer gives an answer of the dispatcher to the stream that waits for it.
func (d *Directory) Answer(answer *pecanv1.CachePart) {
	if d == nil {
		return
	}
	d.follower.mu.Lock()
	defer d.follower.mu.Unlock()
	select {
	case d.follower.answers[asked{answer.GetId().Key(), answer.GetLease(), answer.GetPart()}] <- answer:
	default:
		// Nobody waits any more.
	}
}

// segmentOf returns the segment of a part that another worker has written meanwhile. It returns nil if this worker computes the part:
// no other one does, or none has stored it in the time that computing takes.
func (d *Directory) segmentOf(ctx context.Context, ask *pecanv1.AskCachePart) *pecanv1.CacheSegment {
	f, at := &d.follower, asked{ask.GetId().Key(), ask.GetLease(), ask.GetPart()}
	answers, question := make(chan *pecanv1.CachePart, 2), &pecanv1.WorkerMessage{Kind: &pecanv1.WorkerMessage_AskCachePart{AskCachePart: ask}}
	f.mu.Lock()
	if time.Since(f.vain[ask.Key]) < vainPause {
		f.mu.Unlock()
		ask.NeverWaits = true
		d.Send(question)
		return nil
	}
	if f.answers == nil {
		f.answers = map[asked]chan *pecanv1.CachePart{}
	}
	f.answers[at] = answers
	most := min(max(leastFollow, f.took[ask.Key]), mostFollow)
	f.mu.Unlock()
	defer func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		// Two runs of a stream may ask with one lease.
		if f.answers[at] == answers {
			delete(f.answers, at)
		}
	}()
	d.Send(question)
	for wait := answerWait; ; wait = most {
		select {
		case answer := <-answers:
			if !answer.GetWait() {
				return answer.GetSegment()
			}
		case <-ctx.Done():
			return nil
		case <-time.After(wait):
			f.inVain(ask.Key)
			return nil
		}
	}
}

func (f *follower) inVain(key string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.vain = remember(f.vain, key, time.Now())
}

// wake lets all streams that wait compute: a new session gets no answers to the questions of the session before it.
func (f *follower) wake() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, answers := range f.answers {
		select {
		case answers <- &pecanv1.CachePart{}:
		default:
		}
	}
}

// computed notes how long the computing of a part took.
func (f *follower) computed(key string, took time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.took = remember(f.took, key, took)
}

// remember returns times with a value for a cache. It forgets the others if there are too many.
func remember[V any](times map[string]V, key string, value V) map[string]V {
	if times == nil || len(times) >= mostKeys {
		times = map[string]V{}
	}
	times[key] = value
	return times
}
