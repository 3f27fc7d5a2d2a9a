package durable

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
)

// Applied returns the number of records so far.
func (s *State) Applied() uint64 { return s.applied }

// ClusterID returns the name of the cluster; empty before the first record.
func (s *State) ClusterID() string { return s.clusterID }

// Incarnation counts the processes that opened the store.
func (s *State) Incarnation() uint64 { return s.incarnation }

// LastLease returns the number of the newest lease.
func (s *State) LastLease() uint64 { return s.lastLease }

// Jobs returns the jobs in the order in which they were created. The caller must change neither the slice nor the
// jobs.
func (s *State) Jobs() []*Job { return s.ordered }

// Job returns a job by its id, or nil.
func (s *State) Job(id string) *Job { return s.jobs[id] }

// JobNamed returns the job that has a name, or nil.
func (s *State) JobNamed(name string) *Job { return s.jobs[s.named[name]] }

// Client returns a client by its id, or nil.
func (s *State) Client(id string) *pecanv1.StoredClient { return s.clients[id] }

// Clients returns the number of clients.
func (s *State) Clients() int { return len(s.clients) }

// ClientIDs returns the ids of all clients in ascending order.
func (s *State) ClientIDs() []string { return slices.Sorted(maps.Keys(s.clients)) }

// Dataset returns a registered dataset, or nil. The caller must not change it.
func (s *State) Dataset(id string) *pecanv1.StoredDataset { return s.datasets[id] }

// Datasets returns the number of registered datasets.
func (s *State) Datasets() int { return len(s.datasets) }

// DatasetIDs returns the ids of all registered datasets in ascending order.
func (s *State) DatasetIDs() []string { return slices.Sorted(maps.Keys(s.datasets)) }

// UsesGraph reports whether a registered dataset has the graph with this fingerprint.
func (s *State) UsesGraph(fingerprint string) bool { return s.uses[fingerprint] > 0 }

// Cache returns the record of a cache by its key, or nil.
func (s *State) Cache(key string) *pecanv1.StoredCache { return s.caches[key] }

// CacheSize returns the size of a cache by its key.
func (s *State) CacheSize(key string) CacheSize { return s.sizes[key] }

// Caches returns the number of recorded caches.
func (s *State) Caches() int { return len(s.caches) }

// CacheKeys returns the keys of all recorded caches in ascending order.
func (s *State) CacheKeys() []string { return slices.Sorted(maps.Keys(s.caches)) }

// CachesUsedS returns the time of day of the last record of used caches, in seconds since 1970; 0 without one.
func (s *State) CachesUsedS() int64 { return s.cachesUsedS }

// CompleteCaches returns the number of parts of each committed cache by its key.
func (s *State) CompleteCaches() map[string]int {
	parts := map[string]int{}
	for key, cache := range s.caches {
		if cache.Manifest != "" {
			parts[key] = int(cache.Parts)
		}
	}
	return parts
}

// Decision returns the decision on an order by its key, or nil.
func (s *State) Decision(key OrderKey) *pecanv1.StoredOrder {
	return s.known(key.Fingerprint).order(key)
}

// Profile returns the costs of the steps of a graph by its fingerprint, or nil.
func (s *State) Profile(fingerprint string) *pecanv1.StoredProfile {
	return first(s.known(fingerprint).GetProfiles())
}

func (s *State) job(id string) (*Job, error) {
	if job, ok := s.jobs[id]; ok {
		return job, nil
	}
	return nil, fmt.Errorf("job %q does not exist", id)
}

func (s *State) Epoch(jobID string, number uint64) (*Job, *Epoch, error) {
	job, err := s.job(jobID)
	if err != nil {
		return nil, nil, err
	}
	if epoch := FindEpoch(job, number); epoch != nil {
		return job, epoch, nil
	}
	return nil, nil, fmt.Errorf("epoch %d of job %q is not open", number, jobID)
}

// Opened returns the open epoch that a record opened, or nil.
func (s *State) Opened(record uint64) *Epoch { return s.opened[record] }

// stream finds the stream of a record. A settled stream has no more records.
func (s *State) stream(id *pecanv1.StreamId) (*Epoch, *pecanv1.StoredStream, error) {
	_, epoch, err := s.Epoch(id.GetJobId(), id.GetEpoch())
	if err != nil {
		return nil, nil, err
	}
	if id.GetStream() >= epoch.total || epoch.Settled(id.GetStream()) {
		return nil, nil, fmt.Errorf("stream %d of epoch %d of job %q does not exist, or is settled", id.GetStream(), id.GetEpoch(), id.GetJobId())
	}
	return epoch, epoch.Stream(id.GetStream()), nil
}

func FindEpoch(job *Job, number uint64) *Epoch {
	i, ok := slices.BinarySearchFunc(job.Epochs, number, func(e *Epoch, n uint64) int { return cmp.Compare(e.Epoch, n) })
	if !ok {
		return nil
	}
	return job.Epochs[i]
}

// FindClosed returns one of the newest closed epochs, or nil.
func FindClosed(job *Job, number uint64) *pecanv1.ClosedEpoch {
	i, ok := slices.BinarySearchFunc(job.Closed, number, func(e *pecanv1.ClosedEpoch, n uint64) int { return cmp.Compare(e.Epoch, n) })
	if !ok {
		return nil
	}
	return job.Closed[i]
}

func FindPass(epoch *Epoch, clientID string) *pecanv1.StoredPass {
	for _, pass := range epoch.Passes {
		if pass.ClientId == clientID {
			return pass
		}
	}
	return nil
}
