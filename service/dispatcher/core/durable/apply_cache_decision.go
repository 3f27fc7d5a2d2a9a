package durable

import (
	"errors"
	"fmt"
	"math"
	"slices"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
)

const (
	// maxCachePredictions bounds the candidates that a decision records.
	maxCachePredictions = 64
	// maxEpochS bounds the seconds of a measured epoch, and maxNameBytes the names in it.
	maxEpochS    = 1e9
	maxNameBytes = 1024
)

// Caching returns what jobs with the graph and the type of trainer of a job have found about caches; nil if nothing.
func (s *State) Caching(job *Job) *pecanv1.StoredCaching {
	return s.known(s.datasets[job.DatasetId].GetFingerprint()).caching(job.Options.GetPlacement().GetTrainerType())
}

// CandidateStep returns how the elements of a candidate of a plan are stored; nil if they cannot be cached.
func CandidateStep(plan *pecanv1.Plan, node string) *pecanv1.CachePlan {
	at := slices.IndexFunc(plan.GetCacheCandidates(), func(c *pecanv1.CacheCandidate) bool { return c.Node == node && c.Plan != nil })
	if at < 0 {
		return nil
	}
	return plan.CacheCandidates[at].Plan
}

// CheckCacheDecided refuses what cannot be a decision on a cache.
func (s *State) CheckCacheDecided(r *pecanv1.CacheDecided) error {
	job, err := s.job(r.GetJobId())
	if err != nil {
		return err
	}
	if err := checkCacheDecision(job, r.GetDecision()); err != nil {
		return err
	}
	return checkMeasured(r.Epochs)
}

func (s *State) applyCacheDecided(r *pecanv1.CacheDecided) error {
	if err := s.CheckCacheDecided(r); err != nil {
		return err
	}
	job := s.jobs[r.JobId]
	var open []*Epoch
	for _, number := range r.OpenEpochs {
		epoch := FindEpoch(job, number)
		if epoch == nil || epoch.CachedStep != "" {
			return fmt.Errorf("the decision on a cache is for epoch %d, which is not open or has one", number)
		}
		open = append(open, epoch)
	}
	for _, epoch := range open {
		epoch.CachedStep = r.Decision.Node
	}
	job.CacheDecision = r.Decision
	s.learnCaching(job, r)
	return nil
}

// learnCaching keeps a decision and the epochs that were measured, for later jobs. A try is no decision. Records of earlier
// versions do not say when it was.
func (s *State) learnCaching(job *Job, r *pecanv1.CacheDecided) {
	fingerprint, trainer := s.datasets[job.DatasetId].GetFingerprint(), job.Options.GetPlacement().GetTrainerType()
	if r.AtS <= 0 || fingerprint == "" {
		return
	}
	s.learn(fingerprint, func(k *learnedGraph) {
		now := &pecanv1.StoredCaching{Fingerprint: fingerprint, TrainerType: trainer, Epochs: r.Epochs, KeptS: r.AtS}
		if !r.Decision.Tried {
			now.Decision = r.Decision
		}
		k.Cachings = newest(pecanv1.With(k.Cachings, now.Over(k.caching(trainer))), trainer)
	})
}

// checkCaching refuses what no job can have found.
func checkCaching(c *pecanv1.StoredCaching) error {
	if c.GetFingerprint() == "" || c.KeptS <= 0 {
		return errors.New("a decision on a cache has no fingerprint of a graph, or no time")
	}
	if d := c.Decision; d != nil {
		if err := checkFigures(d); err != nil {
			return err
		}
		if err := CheckSteps(d.Order); len(d.Order) > 0 && err != nil {
			return err
		}
	}
	return checkMeasured(c.Epochs)
}

func checkMeasured(epochs []*pecanv1.MeasuredEpoch) error {
	if len(epochs) > pecanv1.MaxMeasuredEpochs {
		return fmt.Errorf("%d measured epochs; at most %d are possible", len(epochs), pecanv1.MaxMeasuredEpochs)
	}
	for _, e := range epochs {
		if !(e.GetSeconds() > 0 && e.Seconds <= maxEpochS) || len(e.Node) > maxNameBytes || len(e.JobId) > maxNameBytes {
			return fmt.Errorf("a measured epoch took %v s at a step with a name of %d bytes", e.GetSeconds(), len(e.GetNode()))
		}
	}
	return nil
}

func checkCacheDecision(job *Job, d *pecanv1.CacheDecision) error {
	if d == nil {
		return errors.New("the record has no decision on a cache")
	}
	if err := checkCachedStep(job, d.Node); err != nil {
		return err
	}
	if step, _ := CandidateStep(job.Plan, d.Node).InOrder(d.Order); len(d.Order) > 0 && (step == nil || CheckSteps(d.Order) != nil) {
		return fmt.Errorf("the decision on a cache is for step %q, and the steps upstream of it cannot have the order of %d steps", d.Node, len(d.Order))
	}
	return checkFigures(d)
}

func checkFigures(d *pecanv1.CacheDecision) error {
	if len(d.Candidates) > maxCachePredictions {
		return fmt.Errorf("the decision on a cache has %d candidates; at most %d are possible", len(d.Candidates), maxCachePredictions)
	}
	for _, value := range []float64{d.Epochs, d.Total} {
		if !(value >= 0) || math.IsInf(value, 1) {
			return fmt.Errorf("the decision on a cache has %v, which is no number of epochs and no score", value)
		}
	}
	return nil
}

// checkCachedStep refuses a step of an epoch that cannot be cached. A job with pecan.cache() caches there.
func checkCachedStep(job *Job, node string) error {
	if node != "" && (job.Plan.GetCache() != nil || CandidateStep(job.Plan, node) == nil) {
		return fmt.Errorf("step %q cannot be cached", node)
	}
	return nil
}
