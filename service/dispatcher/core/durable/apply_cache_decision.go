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
			return fmt.Errorf("a decision on the cache of epoch %d, which is not open or has one", number)
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
		return errors.New("no decision on a cache")
	case len(d.Candidates) > maxCachePredictions:
		return fmt.Errorf("a decision on a cache with %d candidates", len(d.Candidates))
	}
	if err := checkCachedStep(job, d.Node); err != nil {
		return err
	}
	if step, _ := CandidateStep(job.Plan, d.Node).InOrder(d.Order); len(d.Order) > 0 && (step == nil || CheckSteps(d.Order) != nil) {
		return fmt.Errorf("a decision on a cache at step %q: the steps upstream of it cannot have the order of %d steps", d.Node, len(d.Order))
	}
	for _, value := range []float64{d.Epochs, d.Total} {
		if !(value >= 0) || math.IsInf(value, 1) {
			return fmt.Errorf("a decision on a cache with the value %v", value)
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
