package durable

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
)

// maxLearned bounds the graphs of which something is known. Above it, those leave that jobs used longest ago and that no
// dataset has.
const maxLearned = 10_000

// LearnedOf returns what is known of a graph. It shares memory with the state.
func (s *State) LearnedOf(fingerprint string) *pecanv1.Learned {
	l := &pecanv1.Learned{}
	if profile := s.profiles[fingerprint]; profile != nil {
		l.Profiles = append(l.Profiles, profile)
	}
	for key, decided := range s.orders {
		if key.Fingerprint == fingerprint {
			l.Orders = append(l.Orders, decided)
		}
	}
	for key, known := range s.placements {
		if key.Fingerprint == fingerprint {
			l.Placements = append(l.Placements, known)
		}
	}
	if history := s.histories[fingerprint]; history != nil {
		l.Histories = append(l.Histories, history)
	}
	// A merge sorts the lists.
	return pecanv1.MergeLearned(l, nil)
}

// LearnedGraphs returns the fingerprints of the graphs of which something is known, ascending.
func (s *State) LearnedGraphs() []string { return slices.Sorted(maps.Keys(s.learned)) }

// EpochsBegun returns how many epochs trainers of a job have begun to read, as far as the history of its graph has it.
func (s *State) EpochsBegun(job *Job) uint64 {
	for _, past := range s.histories[s.datasets[job.DatasetId].GetFingerprint()].GetJobs() {
		if past.JobId == job.JobId {
			return past.Epochs
		}
	}
	return 0
}

// PastJobs returns the other jobs in the history of a job's graph.
func (s *State) PastJobs(job *Job) (past []*pecanv1.PastJob) {
	for _, other := range s.histories[s.datasets[job.DatasetId].GetFingerprint()].GetJobs() {
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
			return fmt.Errorf("an order of %d steps at stage %v", len(decided.Order), decided.Stage)
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
		return errors.New("a history of no graph")
	case len(jobs) == 0 || len(jobs) > pecanv1.MaxPastJobs:
		return fmt.Errorf("a history of %d jobs", len(jobs))
	case !slices.IsSortedFunc(jobs, pecanv1.CompareJobs):
		return errors.New("a history whose jobs are not sorted")
	}
	seen := map[string]bool{}
	for _, past := range history.Jobs {
		if past.JobId == "" || seen[past.JobId] || past.Epochs == 0 || past.Epochs > past.NextEpoch || past.NextEpoch > MaxEpoch+1 || past.FirstS <= 0 || past.FirstS > past.LastS {
			return fmt.Errorf("a history with job %q of %d epochs, from %d s to %d s", past.JobId, past.Epochs, past.FirstS, past.LastS)
		}
		seen[past.JobId] = true
	}
	return nil
}

// applyLearnedMerged adds what another dispatcher has learned.
func (s *State) applyLearnedMerged(found *pecanv1.Learned) error {
	if err := CheckLearned(found); err != nil {
		return err
	}
	for _, fingerprint := range found.Graphs() {
		merged := pecanv1.MergeLearned(s.LearnedOf(fingerprint), found.Of(fingerprint))
		for _, profile := range merged.Profiles {
			s.profiles[fingerprint] = profile
		}
		for _, decided := range merged.Orders {
			s.orders[KeyOf(decided)] = decided
		}
		for _, known := range merged.Placements {
			if key := (PlacementKey{fingerprint, known.GetTrainerType()}); s.RoomForPlacement(key) {
				s.placements[key] = known
			}
		}
		for _, history := range merged.Histories {
			s.histories[fingerprint] = history
		}
		s.note(fingerprint)
	}
	return nil
}

// countEpoch counts an epoch that a trainer begins to read, once. Records of earlier versions do not say when.
func (s *State) countEpoch(job *Job, epoch uint64, atS int64) {
	fingerprint := s.datasets[job.DatasetId].GetFingerprint()
	if atS <= 0 || fingerprint == "" {
		return
	}
	history := s.histories[fingerprint]
	if history == nil {
		history = &pecanv1.StoredHistory{Fingerprint: fingerprint}
		s.histories[fingerprint] = history
	}
	at := slices.IndexFunc(history.Jobs, func(j *pecanv1.PastJob) bool { return j.JobId == job.JobId })
	if at < 0 {
		at = len(history.Jobs)
		history.Jobs = append(history.Jobs, &pecanv1.PastJob{JobId: job.JobId, TrainerType: job.Options.GetPlacement().GetTrainerType(), FirstS: atS})
	}
	past := history.Jobs[at]
	if epoch < past.NextEpoch {
		return
	}
	past.Epochs, past.NextEpoch, past.LastS = past.Epochs+1, epoch+1, max(past.LastS, atS)
	history.Jobs = pecanv1.NewestJobs(history.Jobs)
	s.note(fingerprint)
}

// note notes that something is known of a graph.
func (s *State) note(fingerprint string) {
	_, known := s.learned[fingerprint]
	s.learned[fingerprint] = s.histories[fingerprint].LastS()
	if !known {
		s.forgetOldest()
	}
}

// forgetOldest forgets graphs until maxLearned are left, or those of registered datasets only.
func (s *State) forgetOldest() {
	if len(s.learned) <= maxLearned {
		return
	}
	used := map[string]bool{}
	for _, dataset := range s.datasets {
		used[dataset.Fingerprint] = true
	}
	for len(s.learned) > maxLearned {
		oldest := ""
		for fingerprint, last := range s.learned {
			if at := s.learned[oldest]; !used[fingerprint] && (oldest == "" || last < at || last == at && fingerprint < oldest) {
				oldest = fingerprint
			}
		}
		if oldest == "" {
			return
		}
		s.forget(oldest)
	}
}

// forget removes all that is known of a graph.
func (s *State) forget(fingerprint string) {
	delete(s.learned, fingerprint)
	delete(s.profiles, fingerprint)
	delete(s.histories, fingerprint)
	maps.DeleteFunc(s.orders, func(key OrderKey, _ *pecanv1.StoredOrder) bool { return key.Fingerprint == fingerprint })
	maps.DeleteFunc(s.placements, func(key PlacementKey, _ *pecanv1.PlacementKnown) bool { return key.Fingerprint == fingerprint })
}
