package durable

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"

	"google.golang.org/protobuf/proto"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
)

// LearnedOf returns what is known of a graph. It shares memory with the state.
func (s *State) LearnedOf(fingerprint string) *pecanv1.Learned {
	return cmp.Or(s.known(fingerprint).Learned, &pecanv1.Learned{})
}

// LearnedWith returns what would be known of a graph after a merge with what was found. It shares memory with both. What
// is known stays; what was found fills the orders, placements and decisions on caches up to their bounds.
func (s *State) LearnedWith(fingerprint string, found *pecanv1.Learned) *pecanv1.Learned {
	return s.filled(fingerprint, func(known *pecanv1.Learned) *pecanv1.Learned { return pecanv1.MergeLearned(known, found) })
}

// filled returns what would be known of a graph after a merge, within the bounds.
func (s *State) filled(fingerprint string, merge func(known *pecanv1.Learned) *pecanv1.Learned) *pecanv1.Learned {
	k := s.known(fingerprint)
	merged := merge(s.LearnedOf(fingerprint))
	merged.Orders = filled(merged.Orders, maxOrders, func(o *pecanv1.StoredOrder) bool { return k.order(KeyOf(o)) != nil })
	merged.Placements = filled(merged.Placements, maxTrainers, func(p *pecanv1.PlacementKnown) bool { return k.placement(p.TrainerType) != nil })
	merged.Cachings = filled(merged.Cachings, maxTrainers, func(c *pecanv1.StoredCaching) bool { return k.caching(c.TrainerType) != nil })
	return merged
}

// filled returns the known entries of a list, and others until there are this many in all.
func filled[M any](list []M, most int, known func(M) bool) []M {
	room := most
	for _, each := range list {
		if known(each) {
			room--
		}
	}
	return slices.DeleteFunc(list, func(each M) bool {
		if known(each) {
			return false
		}
		room--
		return room < 0
	})
}

// LearnedGraphs returns the fingerprints of the graphs of which something is known, ascending.
func (s *State) LearnedGraphs() []string { return slices.Sorted(maps.Keys(s.learned)) }

// InHistory returns a job as the history of its graph has it; nil if it has not.
func (s *State) InHistory(job *Job) *pecanv1.PastJob {
	for _, past := range s.History(s.datasets[job.DatasetId].GetFingerprint()) {
		if past.JobId == job.JobId {
			return past
		}
	}
	return nil
}

// EpochsBegun returns how many epochs trainers of a job have begun to read, as far as the history of its graph has it.
func (s *State) EpochsBegun(job *Job) uint64 { return s.InHistory(job).GetEpochs() }

// History returns the jobs in the history of a graph.
func (s *State) History(fingerprint string) []*pecanv1.PastJob {
	return s.known(fingerprint).history().GetJobs()
}

// PastJobs returns the other jobs in the history of a job's graph.
func (s *State) PastJobs(job *Job) (past []*pecanv1.PastJob) {
	for _, other := range s.History(s.datasets[job.DatasetId].GetFingerprint()) {
		if other.JobId != job.JobId {
			past = append(past, other)
		}
	}
	return past
}

// Readers returns the earlier jobs, but for one, that could read the cache with a key. The jobs of this graph come first. The newest
// jobs of other graphs follow, up to a bound. Jobs whose keys are not known count too if they have this graph.
func (s *State) Readers(key, fingerprint, but string) (past []*pecanv1.PastJob) {
	key = pecanv1.ShortCacheKey(key)
	var unknown []*pecanv1.PastJob
	for _, other := range slices.Backward(s.History(fingerprint)) {
		switch {
		case other.JobId == but:
		case slices.Contains(other.CacheKeys, key):
			past = append(past, other)
		case len(other.CacheKeys) == 0 && !other.KeysKnown:
			unknown = append(unknown, other)
		}
	}
	for other := range s.readers.newest(key) {
		if len(past) >= pecanv1.MaxPastJobs {
			break
		}
		if other.JobId != but && !slices.Contains(past, other) {
			past = append(past, other)
		}
	}
	return append(past, unknown...)
}

// CheckLearned refuses what no dispatcher can have learned.
func CheckLearned(l *pecanv1.Learned) error {
	if len(l.Graphs()) == 0 {
		return errors.New("nothing was learned")
	}
	for _, profile := range l.Profiles {
		if err := checkProfile(profile); err != nil {
			return err
		}
	}
	for _, decided := range l.Orders {
		if err := checkDecided(decided); err != nil {
			return err
		}
		if _, is := pecanv1.OrderStage_name[int32(decided.Stage)]; !is || decided.Stage != 0 && len(decided.Order) == 0 {
			return fmt.Errorf("an order of %d steps cannot be at stage %v", len(decided.Order), decided.Stage)
		}
		if err := checkProduction(decided.Production); err != nil {
			return err
		}
	}
	for _, known := range l.Placements {
		if err := checkPlacement(known); err != nil {
			return err
		}
		if err := finite(known.Load.GetBase(), known.Load.GetPerLocal(), known.Load.GetPerRemote(), known.Load.GetSlowdown()); err != nil {
			return err
		}
	}
	for _, caching := range l.Cachings {
		if err := checkCaching(caching); err != nil {
			return err
		}
	}
	for _, history := range l.Histories {
		if err := checkHistory(history); err != nil {
			return err
		}
	}
	return nil
}

func checkHistory(history *pecanv1.StoredHistory) error {
	switch jobs := history.GetJobs(); {
	case history.GetFingerprint() == "":
		return errors.New("the history has no fingerprint of a graph")
	case len(jobs) == 0 || len(jobs) > pecanv1.MaxPastJobs:
		return fmt.Errorf("the history has %d jobs; from 1 to %d are possible", len(jobs), pecanv1.MaxPastJobs)
	case !slices.IsSortedFunc(jobs, pecanv1.CompareJobs):
		return errors.New("the jobs of the history are not sorted")
	}
	seen := map[string]bool{}
	for _, past := range history.Jobs {
		if past.JobId == "" || seen[past.JobId] || past.Epochs == 0 || past.Epochs > past.NextEpoch || past.NextEpoch > MaxEpoch+1 || past.FirstS <= 0 || past.FirstS > past.LastS {
			return fmt.Errorf("the history has job %q with %d epochs from %d s to %d s, which no job can have", past.JobId, past.Epochs, past.FirstS, past.LastS)
		}
		seen[past.JobId] = true
		if err := checkCacheKeys(past.CacheKeys); err != nil {
			return fmt.Errorf("job %q: %w", past.JobId, err)
		}
	}
	return nil
}

func checkCacheKeys(keys []string) error {
	if len(keys) > pecanv1.MaxCacheKeys {
		return fmt.Errorf("%d keys of caches; at most %d are possible", len(keys), pecanv1.MaxCacheKeys)
	}
	for i, key := range keys {
		if key == "" || key != pecanv1.ShortCacheKey(key) || i > 0 && key <= keys[i-1] {
			return fmt.Errorf("the keys of caches are too long, or not ascending: %q", keys)
		}
	}
	return nil
}

// unlessRolledBack chooses between two orders as earlier versions did when they read their journals.
func unlessRolledBack(mine, found *pecanv1.StoredOrder) *pecanv1.StoredOrder {
	known := found.GetSuspicions() > 0 && found.GetSuspicions() <= mine.GetSuspicions()
	if found.GetStage() == pecanv1.OrderStage_ORDER_STAGE_ROLLED_BACK && !known {
		return found
	}
	return mine
}

// replace is the choice of records whose orders replace those that are known.
func replace(_, found *pecanv1.StoredOrder) *pecanv1.StoredOrder { return found }

// applyLearnedMerged adds what another dispatcher has learned.
func (s *State) applyLearnedMerged(r *pecanv1.LearnedMerged) error {
	learned, choose := r.GetLearned(), unlessRolledBack
	if r.GetOrdersReplace() {
		choose = replace
	}
	if err := CheckLearned(learned); err != nil {
		return err
	}
	for fingerprint, of := range learned.ByGraph() {
		merged := s.filled(fingerprint, func(known *pecanv1.Learned) *pecanv1.Learned { return pecanv1.MergeLearnedBy(known, of, choose) })
		s.learn(fingerprint, func(k *learnedGraph) { k.Learned = merged })
	}
	return nil
}

// begun is the record of an epoch that a trainer begins to read.
type begun interface {
	GetEpoch() uint64
	GetAtS() int64
	GetCacheKeys() []string
	GetKeysKnown() bool
}

// countEpoch counts an epoch that a trainer begins to read, once. Records of earlier versions do not say when.
func (s *State) countEpoch(job *Job, r begun) {
	fingerprint, epoch, atS := s.datasets[job.DatasetId].GetFingerprint(), r.GetEpoch(), r.GetAtS()
	if atS <= 0 || fingerprint == "" {
		return
	}
	s.learn(fingerprint, func(k *learnedGraph) {
		past, others := &pecanv1.PastJob{JobId: job.JobId, TrainerType: job.Options.GetPlacement().GetTrainerType(), FirstS: atS}, []*pecanv1.PastJob{}
		for _, known := range k.history().GetJobs() {
			if known.JobId != job.JobId {
				others = append(others, known)
				continue
			}
			// Decisions on caches may still read it.
			past = proto.CloneOf(known)
		}
		if keys := r.GetCacheKeys(); r.GetKeysKnown() || len(keys) > 0 {
			past.CacheKeys, past.KeysKnown = keys, true
		}
		if epoch >= past.NextEpoch {
			past.Epochs, past.NextEpoch, past.LastS = past.Epochs+1, epoch+1, max(past.LastS, atS)
		}
		k.Histories = []*pecanv1.StoredHistory{{Fingerprint: fingerprint, Jobs: pecanv1.NewestJobs(append(others, past))}}
	})
}
