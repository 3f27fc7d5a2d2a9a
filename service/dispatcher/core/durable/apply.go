package durable

import (
	"errors"
	"fmt"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
)

// Apply changes the state by one record. A record that does not fit changes nothing and is an error: the journal
// is damaged, or a decision was wrong. Messages inside the record become part of the state.
func (s *State) Apply(record *pecanv1.Record) error {
	s.ended = nil
	if err := s.apply(record); err != nil {
		return fmt.Errorf("apply record %d (%T): %w", s.applied+1, record.GetKind(), err)
	}
	s.applied++
	return nil
}

// Extend applies further entries of the record that was applied last, which is a list. The journal has them as one record.
func (s *State) Extend(entries *pecanv1.Record) error {
	s.ended = nil
	if err := s.apply(entries); err != nil {
		return fmt.Errorf("extend record %d (%T): %w", s.applied, entries.GetKind(), err)
	}
	return nil
}

func (s *State) apply(record *pecanv1.Record) error {
	switch kind := record.GetKind().(type) {
	case *pecanv1.Record_Started:
		return s.applyStarted(kind.Started)
	case *pecanv1.Record_DatasetAdded:
		if kind.DatasetAdded.GetDataset() == nil {
			return errors.New("the record has no dataset")
		}
		s.addDataset(kind.DatasetAdded.Dataset)
		return nil
	case *pecanv1.Record_DatasetRemoved:
		s.applyDatasetRemoved(kind.DatasetRemoved)
		return nil
	case *pecanv1.Record_ClientJoined:
		r := kind.ClientJoined
		s.clients[r.ClientId] = &pecanv1.StoredClient{ClientId: r.ClientId, Host: r.Host, Pid: r.Pid}
		return nil
	case *pecanv1.Record_ClientLeft:
		delete(s.clients, kind.ClientLeft.GetClientId())
		return nil
	case *pecanv1.Record_JobCreated, *pecanv1.Record_JobJoined, *pecanv1.Record_JobLeft,
		*pecanv1.Record_JobFailed, *pecanv1.Record_JobRemoved:
		return s.applyJob(record)
	case *pecanv1.Record_EpochOpened, *pecanv1.Record_EpochJoined, *pecanv1.Record_EpochAdopted, *pecanv1.Record_EpochLeft,
		*pecanv1.Record_EpochFailed, *pecanv1.Record_EpochClosed, *pecanv1.Record_EpochCarried, *pecanv1.Record_StreamAdded:
		return s.applyEpoch(record)
	case *pecanv1.Record_CacheDecided:
		return s.applyCacheDecided(kind.CacheDecided)
	case *pecanv1.Record_CacheSegmentAdded, *pecanv1.Record_CacheCommitted, *pecanv1.Record_CacheSegmentDropped, *pecanv1.Record_CacheRemoved,
		*pecanv1.Record_CachePinned, *pecanv1.Record_CacheEvicted, *pecanv1.Record_CachesUsed, *pecanv1.Record_CacheMeasured:
		return s.applyCache(record)
	case *pecanv1.Record_OrderDecided, *pecanv1.Record_OrderJudged, *pecanv1.Record_OrderSpread,
		*pecanv1.Record_OrderWidened, *pecanv1.Record_ProfileLearned:
		return s.applyOrder(record)
	case *pecanv1.Record_PlacementDecided, *pecanv1.Record_PlacementLearned:
		return s.applyPlacement(record)
	case *pecanv1.Record_LearnedMerged:
		return s.applyLearnedMerged(kind.LearnedMerged)
	case *pecanv1.Record_WorkerNamed, *pecanv1.Record_WorkerForgotten:
		return s.applyWorker(record)
	}
	return s.applyStream(record)
}

func (s *State) applyStarted(r *pecanv1.DispatcherStarted) error {
	if s.clusterID != "" && r.ClusterId != s.clusterID {
		return fmt.Errorf("cluster %q opened a store of cluster %q", r.ClusterId, s.clusterID)
	}
	s.clusterID = r.ClusterId
	s.incarnation++
	return nil
}

// applyDatasetRemoved removes a dataset. Records of earlier versions also remove what is known of its graph, if no other dataset
// has the graph.
func (s *State) applyDatasetRemoved(r *pecanv1.DatasetRemoved) {
	fingerprint := s.datasets[r.GetDatasetId()].GetFingerprint()
	s.removeDataset(r.GetDatasetId())
	if r.GetKeepsLearned() {
		s.forgetOldest()
	} else if !s.UsesGraph(fingerprint) {
		s.forget(fingerprint)
	}
}
