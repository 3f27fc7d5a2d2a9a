package schedule

import (
	"cmp"
	"container/heap"

	"github.com/pecan-ml/pecan/service/dispatcher/core/durable"
)

// maxHeldPerSlot bounds the produced streams that a worker keeps until they are delivered, per slot.
const maxHeldPerSlot = 4

// Worker is a worker that may get streams.
type Worker struct {
	ID string
	// Usable workers are connected, heard recently and not leaving.
	Usable     bool
	MaxStreams int
	// Order is the order in which workers registered. It breaks ties.
	Order uint64
	// Position is the worker's position in the configured list of workers, -1 without one.
	Position int
	// Local is set if the worker serves only the jobs for which Host.Locals has it.
	Local bool
}

// load is a worker with the number of its streams.
type load struct {
	Worker
	running, held int
	// prefetchJobs has the jobs of which the worker holds a stream of a prefetched epoch. The other counts exclude these
	// streams. Each has produced at most one element and waits, perhaps forever, so it must not keep others from the slot.
	prefetchJobs map[string]bool
	// dirty is set if the counts may be wrong.
	dirty bool
	// usableAt, roomAt and aheadAt are the positions in the three heaps, -1 if the worker is not in the heap. Local workers
	// are in no heap. Otherwise workers that serve other jobs only could be on top.
	usableAt, roomAt, aheadAt int
}

func (l *load) hasRoom() bool {
	return l.running < l.MaxStreams && l.held < maxHeldPerSlot*l.MaxStreams
}

// mayServe reports whether the worker may get streams of a job with these local workers, by its kind. See Host.Locals.
func (l *load) mayServe(locals map[string]bool, only bool) bool {
	return !l.Local && !only || locals[l.ID]
}

// takesAhead reports whether the worker may get a stream of some prefetched epoch.
func (l *load) takesAhead() bool { return l.hasRoom() && l.running+len(l.prefetchJobs) < l.MaxStreams }

// count counts the streams of a worker again.
func (l *load) count(leases []durable.Ref) {
	l.running, l.held, l.dirty = 0, 0, false
	clear(l.prefetchJobs)
	for _, held := range leases {
		stream := held.Epoch.Find(held.Stream)
		// Of a prefetched epoch, one stream per worker counts as prefetched. Further ones were started for a trainer
		// that has left, and count like any other.
		if job := held.Epoch.Job.JobId; !stream.Delivered && !l.prefetchJobs[job] && durable.AllPrefetched(held.Epoch) {
			l.prefetchJobs[job] = true
			continue
		}
		if Running(held.Epoch, stream) {
			l.running++
		}
		if !stream.Delivered {
			l.held++
		}
	}
}

// compare orders workers by their load: the fewest running streams are first, then the fewest held ones, then the earliest
// registration.
func (l *load) compare(other *load) int {
	return cmp.Or(cmp.Compare(l.running, other.running), cmp.Compare(l.held, other.held), cmp.Compare(l.Order, other.Order), cmp.Compare(l.ID, other.ID))
}

// loadHeap has the worker with the smallest load on top.
type loadHeap struct {
	loads []*load
	// at returns where a load keeps its position.
	at func(*load) *int
	// ahead is set if the worker with streams of the fewest prefetched epochs is on top.
	ahead bool
}

// Len implements heap.Interface.
func (h *loadHeap) Len() int { return len(h.loads) }

// Less implements heap.Interface.
func (h *loadHeap) Less(i, j int) bool {
	a, b := h.loads[i], h.loads[j]
	if h.ahead && len(a.prefetchJobs) != len(b.prefetchJobs) {
		return len(a.prefetchJobs) < len(b.prefetchJobs)
	}
	return a.compare(b) < 0
}

// Swap implements heap.Interface.
func (h *loadHeap) Swap(i, j int) {
	h.loads[i], h.loads[j] = h.loads[j], h.loads[i]
	*h.at(h.loads[i]), *h.at(h.loads[j]) = i, j
}

// Push implements heap.Interface.
func (h *loadHeap) Push(x any) {
	l := x.(*load)
	*h.at(l) = len(h.loads)
	h.loads = append(h.loads, l)
}

// Pop implements heap.Interface.
func (h *loadHeap) Pop() any {
	last := len(h.loads) - 1
	l := h.loads[last]
	h.loads = h.loads[:last]
	*h.at(l) = -1
	return l
}

// set moves a load to its place, or out of the heap.
func (h *loadHeap) set(l *load, in bool) {
	switch at := *h.at(l); {
	case in && at < 0:
		heap.Push(h, l)
	case in:
		heap.Fix(h, at)
	case at >= 0:
		heap.Remove(h, at)
	}
}

// first returns the worker nearest to the top for which the condition holds; nil if there is none.
func (h *loadHeap) first(holds func(*load) bool) (found *load) {
	if top := h.top(); top == nil || holds(top) {
		return top
	}
	var popped []*load
	for found == nil && len(h.loads) > 0 {
		l := heap.Pop(h).(*load)
		if popped = append(popped, l); holds(l) {
			found = l
		}
	}
	for _, l := range popped {
		heap.Push(h, l)
	}
	return found
}

func (h *loadHeap) top() *load {
	if len(h.loads) == 0 {
		return nil
	}
	return h.loads[0]
}
