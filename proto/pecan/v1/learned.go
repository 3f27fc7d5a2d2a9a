package pecanv1

import (
	"cmp"
	"iter"
	"maps"
	"slices"

	"google.golang.org/protobuf/proto"
)

const (
	// MaxPastJobs bounds the jobs of a StoredHistory.
	MaxPastJobs = 16
	// MaxCacheKeys bounds the keys of a PastJob: those of 12 candidates, and one of a candidate in another order of the steps.
	// cacheKeyLength bounds the length of each.
	MaxCacheKeys   = 13
	cacheKeyLength = 16
	// MaxMeasuredEpochs bounds the measured epochs of a StoredCaching.
	MaxMeasuredEpochs = 1024
)

// ShortCacheKey returns the part of a cache's key that a PastJob has.
func ShortCacheKey(key string) string { return key[:min(len(key), cacheKeyLength)] }

// learnedKey says for which jobs an entry of a Learned is valid. A field that a kind of entries does not have is empty.
type learnedKey struct {
	fingerprint string
	policy      Order
	tolerance   OrderTolerance
	// rest is the plan's hash, the type of trainer or the job.
	rest string
}

func (k learnedKey) compare(other learnedKey) int {
	return cmp.Or(cmp.Compare(k.fingerprint, other.fingerprint), cmp.Compare(k.policy, other.policy), cmp.Compare(k.tolerance, other.tolerance), cmp.Compare(k.rest, other.rest))
}

func (p *StoredProfile) learnedKey() learnedKey { return learnedKey{fingerprint: p.GetFingerprint()} }

func (o *StoredOrder) learnedKey() learnedKey {
	return learnedKey{o.GetFingerprint(), o.GetPolicy(), o.GetTolerance(), o.GetPlanHash()}
}

func (k *PlacementKnown) learnedKey() learnedKey {
	return learnedKey{fingerprint: k.GetFingerprint(), rest: k.GetTrainerType()}
}

func (c *StoredCaching) learnedKey() learnedKey {
	return learnedKey{fingerprint: c.GetFingerprint(), rest: c.GetTrainerType()}
}

func (h *StoredHistory) learnedKey() learnedKey { return learnedKey{fingerprint: h.GetFingerprint()} }

func (j *PastJob) learnedKey() learnedKey { return learnedKey{rest: j.GetJobId()} }

// MergeLearned returns what mine or found says. Where both say something, mine counts, with three exceptions. A rollback of an
// order and its failures count if only found has them. Of caches, what was found later counts. Histories are united. The
// lists of the result ascend by key. The result shares memory with both.
func MergeLearned(mine, found *Learned) *Learned { return MergeLearnedBy(mine, found, laterJudgement) }

// MergeLearnedBy is MergeLearned with a choice between two orders with one key.
func MergeLearnedBy(mine, found *Learned, choose func(mine, found *StoredOrder) *StoredOrder) *Learned {
	merged := &Learned{}
	for _, each := range kinds(choose) {
		each.merge(merged, cmp.Or(mine, &Learned{}), cmp.Or(found, &Learned{}))
	}
	return merged
}

// kinds returns the kinds of what is learned. They differ only in the choice between two entries with one key.
func kinds(chooseOrder func(mine, found *StoredOrder) *StoredOrder) []kind {
	return []kind{
		entriesOf[*StoredProfile]{func(l *Learned) *[]*StoredProfile { return &l.Profiles }, first[*StoredProfile]},
		entriesOf[*StoredOrder]{func(l *Learned) *[]*StoredOrder { return &l.Orders }, chooseOrder},
		entriesOf[*PlacementKnown]{func(l *Learned) *[]*PlacementKnown { return &l.Placements }, first[*PlacementKnown]},
		entriesOf[*StoredHistory]{func(l *Learned) *[]*StoredHistory { return &l.Histories }, unitedHistory},
		entriesOf[*StoredCaching]{func(l *Learned) *[]*StoredCaching { return &l.Cachings }, laterCaching},
	}
}

// kind is one of the lists of a Learned. The arguments may not be nil.
type kind interface {
	merge(into, mine, found *Learned)
	append(to, from *Learned)
	// divide appends each entry to the part of its graph.
	divide(from *Learned, part func(fingerprint string) *Learned)
}

// entry is one element of such a list.
type entry interface{ learnedKey() learnedKey }

type entriesOf[M entry] struct {
	list   func(*Learned) *[]M
	choose func(mine, found M) M
}

func (e entriesOf[M]) merge(into, mine, found *Learned) {
	*e.list(into) = united(*e.list(mine), *e.list(found), e.choose)
}

func (e entriesOf[M]) append(to, from *Learned) {
	*e.list(to) = append(*e.list(to), *e.list(from)...)
}

func (e entriesOf[M]) divide(from *Learned, part func(fingerprint string) *Learned) {
	for _, each := range *e.list(from) {
		list := e.list(part(each.learnedKey().fingerprint))
		*list = append(*list, each)
	}
}

// Append appends the lists of from. l shares memory with from then.
func (l *Learned) Append(from *Learned) {
	for _, each := range kinds(laterJudgement) {
		each.append(l, from)
	}
}

// With returns a list with an entry in place of the one with its key. The list ascends by key, and shares entries with the first one.
func With[M entry](list []M, entry M) []M {
	return united(list, []M{entry}, func(_, replacement M) M { return replacement })
}

// united merges two lists; choose merges two entries with one key.
func united[M entry](mine, found []M, choose func(mine, found M) M) (list []M) {
	at := map[learnedKey]M{}
	for _, entry := range slices.Concat(mine, found) {
		key := entry.learnedKey()
		if known, is := at[key]; is {
			entry = choose(known, entry)
		}
		at[key] = entry
	}
	for _, key := range slices.SortedFunc(maps.Keys(at), learnedKey.compare) {
		list = append(list, at[key])
	}
	return list
}

func first[M any](mine, _ M) M { return mine }

// laterCaching returns what was found later. What it does not say is taken from the other one.
func laterCaching(mine, found *StoredCaching) *StoredCaching {
	later, earlier := mine, found
	if found.GetKeptS() > mine.GetKeptS() {
		later, earlier = found, mine
	}
	return later.Over(earlier)
}

// Over returns c. From an earlier one, it takes the decision if c has none, and the measured epochs of steps of which c has none. It
// shares memory with both.
func (c *StoredCaching) Over(earlier *StoredCaching) *StoredCaching {
	over := &StoredCaching{Fingerprint: c.GetFingerprint(), TrainerType: c.GetTrainerType(), Decision: c.GetDecision(), Epochs: c.GetEpochs(), KeptS: c.GetKeptS()}
	if over.Decision == nil {
		over.Decision = earlier.GetDecision()
	}
	known := map[string]bool{}
	for _, e := range c.GetEpochs() {
		known[e.GetNode()] = true
	}
	for _, e := range earlier.GetEpochs() {
		if !known[e.GetNode()] && len(over.Epochs) < MaxMeasuredEpochs {
			over.Epochs = append(slices.Clip(over.Epochs), e)
		}
	}
	return over
}

// laterJudgement prefers a final rollback, then the view that knows more failures of the order, then mine. What mine and found know of
// failures adds up. Failures of another order say nothing of mine.
func laterJudgement(mine, found *StoredOrder) *StoredOrder {
	switch {
	case mine.isFinal():
		return mine
	case found.isFinal():
		return found
	case !slices.Equal(mine.GetOrder(), found.GetOrder()):
		return mine
	}
	chosen := mine
	if cmp.Or(cmp.Compare(found.knownOfElements(), mine.knownOfElements()), cmp.Compare(found.GetSuspicions(), mine.GetSuspicions())) > 0 {
		chosen = found
	}
	if suspicions := max(mine.GetSuspicions(), found.GetSuspicions()); chosen.GetSuspicions() < suspicions {
		chosen = proto.CloneOf(chosen)
		chosen.Suspicions = suspicions
	}
	return chosen
}

func unitedHistory(mine, found *StoredHistory) *StoredHistory {
	jobs := united(mine.GetJobs(), found.GetJobs(), laterView)
	return &StoredHistory{Fingerprint: mine.GetFingerprint(), Jobs: NewestJobs(jobs)}
}

// laterView returns the later of two views of one job.
func laterView(a, b *PastJob) *PastJob {
	if b.GetEpochs() > a.GetEpochs() {
		return b
	}
	return a
}

// CompareJobs orders the jobs of a history.
func CompareJobs(a, b *PastJob) int {
	return cmp.Or(cmp.Compare(a.GetLastS(), b.GetLastS()), cmp.Compare(a.GetJobId(), b.GetJobId()))
}

// NewestJobs sorts jobs, and returns those that began an epoch last: MaxPastJobs at most.
func NewestJobs(jobs []*PastJob) []*PastJob {
	slices.SortFunc(jobs, CompareJobs)
	return jobs[max(0, len(jobs)-MaxPastJobs):]
}

// LastS returns when a job of the history began an epoch last, in seconds since 1970; 0 without a job.
func (h *StoredHistory) LastS() int64 {
	if len(h.GetJobs()) == 0 {
		return 0
	}
	return h.Jobs[len(h.Jobs)-1].GetLastS()
}

// Graphs returns the fingerprints of all graphs of which l says something, ascending.
func (l *Learned) Graphs() []string { return slices.Sorted(maps.Keys(l.parts())) }

// ByGraph returns what l says of each graph, ascending by fingerprint. It shares memory with l.
func (l *Learned) ByGraph() iter.Seq2[string, *Learned] {
	return func(yield func(string, *Learned) bool) {
		parts := l.parts()
		for _, fingerprint := range slices.Sorted(maps.Keys(parts)) {
			if !yield(fingerprint, parts[fingerprint]) {
				return
			}
		}
	}
}

// parts returns what l says of each graph by fingerprint.
func (l *Learned) parts() map[string]*Learned {
	parts := map[string]*Learned{}
	of := func(fingerprint string) *Learned {
		if parts[fingerprint] == nil {
			parts[fingerprint] = &Learned{}
		}
		return parts[fingerprint]
	}
	for _, each := range kinds(laterJudgement) {
		each.divide(cmp.Or(l, &Learned{}), of)
	}
	return parts
}

// Of returns what l says of one graph. It shares memory with l.
func (l *Learned) Of(fingerprint string) *Learned {
	if part := l.parts()[fingerprint]; part != nil {
		return part
	}
	return &Learned{}
}
