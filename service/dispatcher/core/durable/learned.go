package durable

import (
	"cmp"
	"container/heap"
	"slices"

	"google.golang.org/protobuf/proto"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
)

const (
	// maxLearned bounds the graphs about which something was learned. maxLearnedBytes bounds what was learned about all of
	// them. Above that, those leave that jobs used longest ago and that no dataset has.
	maxLearned      = 10_000
	maxLearnedBytes = 256 << 20
	// maxTrainers bounds the types of trainers for which something is known of one graph. What was found first leaves first.
	maxTrainers = 16
	// maxOrders bounds the orders of one graph that a merge adds to. Jobs decide on more only under as many plans.
	maxOrders = 64
)

// learnedGraph is what was learned about one graph. A change replaces a list, because callers may read the old one.
type learnedGraph struct {
	fingerprint string
	*pecanv1.Learned

	// bytes is the size of all that. at is the place among the graphs that no dataset has; -1 if one has it.
	bytes, at int
}

// history returns the epochs that jobs have read.
func (k *learnedGraph) history() *pecanv1.StoredHistory { return first(k.GetHistories()) }

func (k *learnedGraph) order(key OrderKey) *pecanv1.StoredOrder {
	return find(k.GetOrders(), func(o *pecanv1.StoredOrder) bool { return KeyOf(o) == key })
}

// placement returns the result of the search for workers for a type of trainer.
func (k *learnedGraph) placement(trainer string) *pecanv1.PlacementKnown {
	return find(k.GetPlacements(), func(p *pecanv1.PlacementKnown) bool { return p.TrainerType == trainer })
}

// caching returns the decision on caches and the measured epochs for a type of trainer.
func (k *learnedGraph) caching(trainer string) *pecanv1.StoredCaching {
	return find(k.GetCachings(), func(c *pecanv1.StoredCaching) bool { return c.TrainerType == trainer })
}

// find returns the entry of which is is true; nil without one.
func find[M any](list []*M, is func(*M) bool) *M {
	if at := slices.IndexFunc(list, is); at >= 0 {
		return list[at]
	}
	return nil
}

// first returns the first entry; nil without one.
func first[M any](list []*M) *M { return find(list, func(*M) bool { return true }) }

// newest returns a list without the entries that were kept first, so that few types of trainers are left. It keeps the entry of one type.
func newest[M interface {
	GetKeptS() int64
	GetTrainerType() string
}](entries []M, except string) []M {
	for len(entries) > maxTrainers {
		others := slices.DeleteFunc(slices.Clone(entries), func(e M) bool { return e.GetTrainerType() == except })
		oldest := slices.MinFunc(others, func(a, b M) int { return cmp.Compare(a.GetKeptS(), b.GetKeptS()) })
		entries = slices.DeleteFunc(entries, func(e M) bool { return e.GetTrainerType() == oldest.GetTrainerType() })
	}
	return entries
}

// known returns what was learned about a graph, for reading.
func (s *State) known(fingerprint string) *learnedGraph {
	if k := s.learned[fingerprint]; k != nil {
		return k
	}
	return &learnedGraph{}
}

// learn changes what was learned about a graph.
func (s *State) learn(fingerprint string, change func(*learnedGraph)) {
	k := s.learned[fingerprint]
	if k == nil {
		k = &learnedGraph{fingerprint: fingerprint, Learned: &pecanv1.Learned{}, at: -1}
		s.learned[fingerprint] = k
	}
	before := k.history().GetJobs()
	change(k)
	s.readers.note(before, k.history().GetJobs())
	s.learnedBytes -= k.bytes
	k.bytes = proto.Size(k.Learned)
	s.learnedBytes += k.bytes
	s.place(k)
	s.forgetOldest()
}

// use counts the datasets with a graph.
func (s *State) use(fingerprint string, by int) {
	if s.uses[fingerprint] += by; s.uses[fingerprint] == 0 {
		delete(s.uses, fingerprint)
	}
	if k := s.learned[fingerprint]; k != nil {
		s.place(k)
	}
}

// place finds the place of a graph among those that no dataset has.
func (s *State) place(k *learnedGraph) {
	switch used := s.UsesGraph(k.fingerprint); {
	case used && k.at >= 0:
		heap.Remove(&s.unused, k.at)
	case used:
	case k.at < 0:
		heap.Push(&s.unused, k)
	default:
		heap.Fix(&s.unused, k.at)
	}
}

// forgetOldest forgets graphs until the bounds hold, or those of registered datasets are left.
func (s *State) forgetOldest() {
	for len(s.unused) > 0 && (len(s.learned) > maxLearned || s.learnedBytes > maxLearnedBytes) {
		s.forget(s.unused[0].fingerprint)
	}
}

// forget removes all that was learned about a graph.
func (s *State) forget(fingerprint string) {
	k := s.learned[fingerprint]
	if k == nil {
		return
	}
	if k.at >= 0 {
		heap.Remove(&s.unused, k.at)
	}
	s.readers.note(k.history().GetJobs(), nil)
	s.learnedBytes -= k.bytes
	delete(s.learned, fingerprint)
}

// unusedGraphs is a heap of the graphs that no dataset has. On top is the one that jobs used longest ago.
type unusedGraphs []*learnedGraph

// Len implements heap.Interface.
func (u unusedGraphs) Len() int { return len(u) }

// Less implements heap.Interface.
func (u unusedGraphs) Less(i, j int) bool {
	return cmp.Or(cmp.Compare(u[i].history().LastS(), u[j].history().LastS()), cmp.Compare(u[i].fingerprint, u[j].fingerprint)) < 0
}

// Swap implements heap.Interface.
func (u unusedGraphs) Swap(i, j int) {
	u[i], u[j] = u[j], u[i]
	u[i].at, u[j].at = i, j
}

// Push implements heap.Interface.
func (u *unusedGraphs) Push(x any) {
	x.(*learnedGraph).at = len(*u)
	*u = append(*u, x.(*learnedGraph))
}

// Pop implements heap.Interface.
func (u *unusedGraphs) Pop() any {
	last := len(*u) - 1
	k := (*u)[last]
	(*u)[last] = nil
	*u, k.at = (*u)[:last], -1
	return k
}
