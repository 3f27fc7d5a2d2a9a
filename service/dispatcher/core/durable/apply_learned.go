package durable

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
)

// LearnedOf returns what is known of a graph. It shares memory with the state.
func (s *State) LearnedOf(fingerprint string) *pecanv1.Learned { return s.known(fingerprint).list() }

// LearnedWith returns what would be known of a graph after a merge with what was found. It shares memory with both. What
// is known stays; what was found fills the orders and placements up to their bounds.
func (s *State) LearnedWith(fingerprint string, found *pecanv1.Learned) *pecanv1.Learned {
	return s.filled(fingerprint, func(known *pecanv1.Learned) *pecanv1.Learned { return pecanv1.MergeLearned(known, found) })
}

// filled returns what would be known of a graph after a merge, within the bounds.
func (s *State) filled(fingerprint string, merge func(known *pecanv1.Learned) *pecanv1.Learned) *pecanv1.Learned {
	k := s.known(fingerprint)
	merged := merge(k.list())
	merged.Orders = filled(merged.Orders, maxOrders, func(o *pecanv1.StoredOrder) bool { return k.orders[KeyOf(o)] != nil })
	merged.Placements = filled(merged.Placements, maxPlacements, func(p *pecanv1.PlacementKnown) bool { return k.placements[p.TrainerType] != nil })
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

// EpochsBegun returns how many epochs trainers of a job have begun to read, as far as the history of its graph has it.
func (s *State) EpochsBegun(job *Job) uint64 {
	for _, past := range s.History(s.datasets[job.DatasetId].GetFingerprint()) {
		if past.JobId == job.JobId {
			return past.Epochs
		}
	}
	return 0
}

// History returns the jobs in the history of a graph.
func (s *State) History(fingerprint string) []*pecanv1.PastJob {
	return s.known(fingerprint).history.GetJobs()
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
		s.learn(fingerprint, func(k *learnedGraph) { k.take(merged) })
	}
	return nil
}

// countEpoch counts an epoch that a trainer begins to read, once. Records of earlier versions do not say when.
func (s *State) countEpoch(job *Job, epoch uint64, atS int64) {
	fingerprint := s.datasets[job.DatasetId].GetFingerprint()
	if atS <= 0 || fingerprint == "" {
		return
	}
	s.learn(fingerprint, func(k *learnedGraph) {
		if k.history == nil {
			k.history = &pecanv1.StoredHistory{Fingerprint: fingerprint}
		}
		at := slices.IndexFunc(k.history.Jobs, func(j *pecanv1.PastJob) bool { return j.JobId == job.JobId })
		if at < 0 {
			at = len(k.history.Jobs)
			k.history.Jobs = append(k.history.Jobs, &pecanv1.PastJob{JobId: job.JobId, TrainerType: job.Options.GetPlacement().GetTrainerType(), FirstS: atS})
		}
		past := k.history.Jobs[at]
		if epoch < past.NextEpoch {
			return
		}
		past.Epochs, past.NextEpoch, past.LastS = past.Epochs+1, epoch+1, max(past.LastS, atS)
		k.history.Jobs = pecanv1.NewestJobs(k.history.Jobs)
	})
}
