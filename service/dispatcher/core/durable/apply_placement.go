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
	if err := checkPlacement(known); err != nil {
		return err
	}
	key := PlacementKey{known.Fingerprint, known.TrainerType}
	switch {
	case !s.UsesGraph(key.Fingerprint):
		return fmt.Errorf("a result of a search for %q, but no dataset has that graph", key.Fingerprint)
	case !s.RoomForPlacement(key):
		return fmt.Errorf("more than %d results of searches", maxPlacements)
	}
	s.placements[key] = known
	s.note(key.Fingerprint)
	return nil
}

// checkPlacement refuses what cannot be the result of a search.
func checkPlacement(known *pecanv1.PlacementKnown) error {
	if known.GetFingerprint() == "" {
		return errors.New("a result of a search for no graph")
	}
	remote, local := known.RemoteCurve, known.LocalCurve
	return finite(remote.GetRate(), remote.GetExponent(), remote.GetLimit(), local.GetRate(), local.GetExponent(), local.GetLimit())
}

// finite refuses figures that no search can find.
func finite(figures ...float64) error {
	for _, figure := range figures {
		if math.IsNaN(figure) || math.IsInf(figure, 0) {
			return fmt.Errorf("a result of a search with the figure %v", figure)
		}
	}
	return nil
}
