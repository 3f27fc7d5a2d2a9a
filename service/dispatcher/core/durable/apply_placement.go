package durable

import (
	"errors"
	"fmt"
	"math"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
)

// maxCandidates bounds the configurations that a decision records.
const maxCandidates = 64

// PlacementKey is what the result of a search for workers is valid for.
type PlacementKey struct{ Fingerprint, TrainerType string }

// KnownPlacement returns the result of an earlier search; nil without one.
func (s *State) KnownPlacement(key PlacementKey) *pecanv1.PlacementKnown {
	return s.known(key.Fingerprint).placement(key.TrainerType)
}

func (s *State) applyPlacement(record *pecanv1.Record) error {
	if kept := record.GetPlacementLearned(); kept != nil {
		return s.applyPlacementLearned(kept.GetKnown())
	}
	r := record.GetPlacementDecided()
	job := s.jobs[r.GetJobId()]
	switch {
	case job == nil:
		return fmt.Errorf("the placement is of job %q, which does not exist", r.GetJobId())
	case r.GetPlacement() == nil:
		return errors.New("the record has no placement")
	case len(r.Placement.Candidates) > maxCandidates:
		return fmt.Errorf("the placement has %d candidates; at most %d are possible", len(r.Placement.Candidates), maxCandidates)
	}
	job.Placement = r.Placement
	return nil
}

func (s *State) applyPlacementLearned(known *pecanv1.PlacementKnown) error {
	if err := checkPlacement(known); err != nil {
		return err
	}
	if !s.UsesGraph(known.Fingerprint) {
		return fmt.Errorf("the result of a search is for the graph %q, which no dataset has", known.Fingerprint)
	}
	s.learn(known.Fingerprint, func(k *learnedGraph) {
		k.Placements = newest(pecanv1.With(k.Placements, known), known.TrainerType)
	})
	return nil
}

// checkPlacement refuses what cannot be the result of a search.
func checkPlacement(known *pecanv1.PlacementKnown) error {
	if known.GetFingerprint() == "" {
		return errors.New("the result of a search has no fingerprint of a graph")
	}
	remote, local := known.RemoteCurve, known.LocalCurve
	return finite(remote.GetRate(), remote.GetExponent(), remote.GetLimit(), local.GetRate(), local.GetExponent(), local.GetLimit())
}

// finite refuses figures that no search can find.
func finite(figures ...float64) error {
	for _, figure := range figures {
		if math.IsNaN(figure) || math.IsInf(figure, 0) {
			return fmt.Errorf("the result of a search has the figure %v", figure)
		}
	}
	return nil
}
