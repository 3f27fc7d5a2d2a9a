package durable

import (
	"cmp"
	"container/heap"
	"maps"
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

// learnedGraph is what was learned about one graph.
type learnedGraph struct {
	fingerprint string
	// profile has the costs of its steps.
	profile *pecanv1.StoredProfile
	orders  map[OrderKey]*pecanv1.StoredOrder
	// placements has the results of searches for workers by the type of trainer.
	placements map[string]*pecanv1.PlacementKnown
	// cachings has decisions on caches, and measured epochs, by the type of trainer.
	cachings map[string]*pecanv1.StoredCaching
	// history has the epochs that jobs have read.
	history *pecanv1.StoredHistory

	// bytes is the size of all that. at is the place among the graphs that no dataset has; -1 if one has it.
	bytes, at int
}

// take replaces all that was learned.
func (k *learnedGraph) take(l *pecanv1.Learned) {
	k.profile, k.history = nil, nil
	k.orders, k.placements = map[OrderKey]*pecanv1.StoredOrder{}, map[string]*pecanv1.PlacementKnown{}
	k.cachings = map[string]*pecanv1.StoredCaching{}
	for _, profile := range l.Profiles {
		k.profile = profile
	}
	for _, decided := range l.Orders {
		k.orders[KeyOf(decided)] = decided
	}
	for _, known := range l.Placements {
		k.placements[known.TrainerType] = known
	}
	for _, caching := range l.Cachings {
		k.cachings[caching.TrainerType] = caching
	}
	for _, history := range l.Histories {
		k.history = history
	}
}

// list returns all that was learned. It shares memory.
func (k *learnedGraph) list() *pecanv1.Learned {
	l := &pecanv1.Learned{}
	if k.profile != nil {
		l.Profiles = append(l.Profiles, k.profile)
	}
	for _, decided := range k.orders {
		l.Orders = append(l.Orders, decided)
	}
	slices.SortFunc(l.Orders, func(a, b *pecanv1.StoredOrder) int { return KeyOf(a).Compare(KeyOf(b)) })
	for _, trainer := range slices.Sorted(maps.Keys(k.placements)) {
		l.Placements = append(l.Placements, k.placements[trainer])
	}
	for _, trainer := range slices.Sorted(maps.Keys(k.cachings)) {
		l.Cachings = append(l.Cachings, k.cachings[trainer])
	}
	if k.history != nil {
		l.Histories = append(l.Histories, k.history)
	}
	return l
}

// keepNewest removes entries that were kept first until few types of trainers are left. It keeps the entry of one type.
func keepNewest[M interface{ GetKeptS() int64 }](entries map[string]M, except string) {
	for len(entries) > maxTrainers {
		others := slices.DeleteFunc(slices.Sorted(maps.Keys(entries)), func(trainer string) bool { return trainer == except })
		delete(entries, slices.MinFunc(others, func(a, b string) int { return cmp.Compare(entries[a].GetKeptS(), entries[b].GetKeptS()) }))
	}
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
		k = &learnedGraph{fingerprint: fingerprint, at: -1}
		k.take(&pecanv1.Learned{})
		s.learned[fingerprint] = k
	}
	before := slices.Clone(k.history.GetJobs())
	change(k)
	s.readers.note(before, k.history.GetJobs())
	s.learnedBytes -= k.bytes
	k.bytes = proto.Size(k.list())
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
	s.readers.note(k.history.GetJobs(), nil)
	s.learnedBytes -= k.bytes
	delete(s.learned, fingerprint)
}

// unusedGraphs is a heap of the graphs that no dataset has. On top is the one that jobs used longest ago.
type unusedGraphs []*learnedGraph

// Len implements heap.Interface.
func (u unusedGraphs) Len() int { return len(u) }

// Less implements heap.Interface.
func (u unusedGraphs) Less(i, j int) bool {
	return cmp.Or(cmp.Compare(u[i].history.LastS(), u[j].history.LastS()), cmp.Compare(u[i].fingerprint, u[j].fingerprint)) < 0
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
