package durable

import (
	"cmp"
	"errors"
	"fmt"
	"math"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
)

// maxCandidates bounds the configurations that a decision records, maxPlacements the kept results of searches.
const (
	maxCandidates = 64
	maxPlacements = 10_000
)

// PlacementKey is what the result of a search for workers is valid for.
type PlacementKey struct{ Fingerprint, TrainerType string }

func (k PlacementKey) Compare(other PlacementKey) int {
	return cmp.Or(cmp.Compare(k.Fingerprint, other.Fingerprint), cmp.Compare(k.TrainerType, other.TrainerType))
}

// KnownPlacement returns the result of an earlier search; nil without one.
func (s *State) KnownPlacement(key PlacementKey) *pecanv1.PlacementKnown { return s.placements[key] }

// RoomForPlacement reports whether the result of a search can be kept.
func (s *State) RoomForPlacement(key PlacementKey) bool {
	return s.placements[key] != nil || len(s.placements) < maxPlacements
}

func (s *State) applyPlacement(record *pecanv1.Record) error {
	if kept := record.GetPlacementKept(); kept != nil {
		return s.applyPlacementKept(kept.GetKnown())
	}
	r := record.GetPlacementDecided()
	job := s.jobs[r.GetJobId()]
	switch {
	case job == nil:
		return fmt.Errorf("a placement of job %q, which does not exist", r.GetJobId())
	case r.GetPlacement() == nil:
		return errors.New("no placement")
	case len(r.Placement.Candidates) > maxCandidates:
		return fmt.Errorf("a placement with %d candidates", len(r.Placement.Candidates))
	}
	job.Placement = r.Placement
	return nil
}

func (s *State) applyPlacementKept(known *pecanv1.PlacementKnown) error {
	key := PlacementKey{known.GetFingerprint(), known.GetTrainerType()}
	switch {
	case key.Fingerprint == "" || !s.UsesGraph(key.Fingerprint):
		return fmt.Errorf("a result of a search for %q, but no dataset has that graph", key.Fingerprint)
	case !s.RoomForPlacement(key):
		return fmt.Errorf("more than %d results of searches", maxPlacements)
	}
	for _, c := range []*pecanv1.PlacementCurve{known.RemoteCurve, known.LocalCurve} {
		for _, figure := range []float64{c.GetRate(), c.GetExponent(), c.GetLimit()} {
			if math.IsNaN(figure) || math.IsInf(figure, 0) {
				return fmt.Errorf("a result of a search with the figure %v", figure)
			}
		}
	}
	s.placements[key] = known
	return nil
}
