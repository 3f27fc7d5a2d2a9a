package durable

import (
	"errors"
	"fmt"
	"math"
	"slices"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
)

// maxCachePredictions bounds the candidates that a decision records.
const maxCachePredictions = 64

// CandidateStep returns how the elements of a candidate of a plan are stored; nil if they cannot be cached.
func CandidateStep(plan *pecanv1.Plan, node string) *pecanv1.CachePlan {
	at := slices.IndexFunc(plan.GetCacheCandidates(), func(c *pecanv1.CacheCandidate) bool { return c.Node == node && c.Plan != nil })
	if at < 0 {
		return nil
	}
	return plan.CacheCandidates[at].Plan
}

func (s *State) applyCacheDecided(r *pecanv1.CacheDecided) error {
	job, err := s.job(r.GetJobId())
	if err != nil {
		return err
	}
	if err := checkCacheDecision(job, r.GetDecision()); err != nil {
		return err
	}
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
	return nil
}

func checkCacheDecision(job *Job, d *pecanv1.CacheDecision) error {
	switch {
	case d == nil:
		return errors.New("the record has no decision on a cache")
	case len(d.Candidates) > maxCachePredictions:
		return fmt.Errorf("the decision on a cache has %d candidates; at most %d are possible", len(d.Candidates), maxCachePredictions)
	}
	if err := checkCachedStep(job, d.Node); err != nil {
		return err
	}
	if step, _ := CandidateStep(job.Plan, d.Node).InOrder(d.Order); len(d.Order) > 0 && (step == nil || CheckSteps(d.Order) != nil) {
		return fmt.Errorf("the decision on a cache is for step %q, and the steps upstream of it cannot have the order of %d steps", d.Node, len(d.Order))
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
