package core

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"

	"google.golang.org/protobuf/proto"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
)

const (
	// keptRequests bounds how many answered requests of a client are remembered.
	keptRequests = 64
	// keptClosed bounds how many closed epochs of a job are remembered one by one.
	keptClosed = 64
	// maxStreams bounds what one epoch may have.
	maxStreams = 1 << 16
	// maxEpoch bounds the number that a trainer may go on with.
	maxEpoch = 1 << 62
)

// State is the durable state. Only Apply and Restore change it.
type State struct {
	applied     uint64
	clusterID   string
	incarnation uint64
	lastLease   uint64
	datasets    map[string]*pecanv1.StoredDataset
	clients     map[string]*pecanv1.StoredClient
	jobs        map[string]*pecanv1.StoredJob
	caches      map[string]*pecanv1.StoredCache
	orders      map[orderKey]*pecanv1.StoredOrder
	// profiles has what the steps of a graph cost, by its fingerprint.
	profiles map[string]*pecanv1.StoredProfile

	// ordered has the jobs in the order in which they came, and named the id for each name: both follow from jobs.
	ordered []*pecanv1.StoredJob
	named   map[string]string
}

// NewState is the state before any record.
func NewState() *State {
	return &State{
		datasets: map[string]*pecanv1.StoredDataset{}, clients: map[string]*pecanv1.StoredClient{},
		jobs: map[string]*pecanv1.StoredJob{}, named: map[string]string{}, caches: map[string]*pecanv1.StoredCache{},
		orders: map[orderKey]*pecanv1.StoredOrder{}, profiles: map[string]*pecanv1.StoredProfile{},
	}
}

// Restore makes the state of a snapshot.
func Restore(data []byte) (*State, error) {
	snapshot := &pecanv1.Snapshot{}
	if err := proto.Unmarshal(data, snapshot); err != nil {
		return nil, fmt.Errorf("parse snapshot: %w", err)
	}
	s := NewState()
	s.applied, s.clusterID, s.incarnation, s.lastLease =
		snapshot.Applied, snapshot.ClusterId, snapshot.Incarnation, snapshot.LastLease
	for _, dataset := range snapshot.Datasets {
		s.datasets[dataset.DatasetId] = dataset
	}
	for _, client := range snapshot.Clients {
		s.clients[client.ClientId] = client
	}
	for _, cache := range snapshot.Caches {
		s.caches[cache.Key] = cache
	}
	for _, decided := range snapshot.Orders {
		s.orders[keyOfDecision(decided)] = decided
	}
	for _, profile := range snapshot.Profiles {
		s.profiles[profile.Fingerprint] = profile
	}
	for _, job := range snapshot.Jobs {
		s.addJob(job)
		for _, epoch := range job.Epochs {
			for _, stream := range epoch.Streams {
				// A snapshot of before assignments were numbered.
				if stream.Consumer != "" && stream.Assignment == 0 {
					stream.Assignment = 1
				}
			}
		}
	}
	slices.SortFunc(s.ordered, func(a, b *pecanv1.StoredJob) int { return cmp.Compare(a.Sequence, b.Sequence) })
	return s, nil
}

// Snapshot gives the whole state; equal states have equal snapshots. It shares memory with the state.
func (s *State) Snapshot() *pecanv1.Snapshot {
	snapshot := &pecanv1.Snapshot{
		Applied: s.applied, ClusterId: s.clusterID, Incarnation: s.incarnation, LastLease: s.lastLease,
	}
	for _, id := range sortedKeys(s.datasets) {
		snapshot.Datasets = append(snapshot.Datasets, s.datasets[id])
	}
	for _, id := range sortedKeys(s.clients) {
		snapshot.Clients = append(snapshot.Clients, s.clients[id])
	}
	for _, id := range sortedKeys(s.jobs) {
		snapshot.Jobs = append(snapshot.Jobs, s.jobs[id])
	}
	for _, key := range sortedKeys(s.caches) {
		snapshot.Caches = append(snapshot.Caches, s.caches[key])
	}
	snapshot.Orders = s.listOrders()
	for _, fingerprint := range sortedKeys(s.profiles) {
		snapshot.Profiles = append(snapshot.Profiles, s.profiles[fingerprint])
	}
	return snapshot
}

// Marshal is the snapshot in bytes, the same bytes for the same state.
func (s *State) Marshal() ([]byte, error) {
	data, err := proto.MarshalOptions{Deterministic: true}.Marshal(s.Snapshot())
	if err != nil {
		return nil, fmt.Errorf("write snapshot: %w", err)
	}
	return data, nil
}

// Hash tells two states apart.
func (s *State) Hash() string {
	data, err := s.Marshal()
	if err != nil {
		return err.Error()
	}
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

// Applied is the number of records so far.
func (s *State) Applied() uint64 { return s.applied }

// ClusterID is the name of the cluster, empty before the first record.
func (s *State) ClusterID() string { return s.clusterID }

// Incarnation counts the processes that opened the store.
func (s *State) Incarnation() uint64 { return s.incarnation }

// Dataset gives a registered dataset or nil; it is not to be changed.
func (s *State) Dataset(id string) *pecanv1.StoredDataset { return s.datasets[id] }

// UsesGraph tells whether a registered dataset has the graph of that fingerprint.
func (s *State) UsesGraph(fingerprint string) bool {
	for _, dataset := range s.datasets {
		if dataset.Fingerprint == fingerprint {
			return true
		}
	}
	return false
}

func (s *State) addJob(job *pecanv1.StoredJob) {
	s.jobs[job.JobId] = job
	s.ordered = append(s.ordered, job)
	if job.Name != "" {
		s.named[job.Name] = job.JobId
	}
}

func (s *State) job(id string) (*pecanv1.StoredJob, error) {
	if job, ok := s.jobs[id]; ok {
		return job, nil
	}
	return nil, fmt.Errorf("no job %q", id)
}

func (s *State) epoch(jobID string, number uint64) (*pecanv1.StoredJob, *pecanv1.StoredEpoch, error) {
	job, err := s.job(jobID)
	if err != nil {
		return nil, nil, err
	}
	if epoch := findEpoch(job, number); epoch != nil {
		return job, epoch, nil
	}
	return nil, nil, fmt.Errorf("no epoch %d of job %q", number, jobID)
}

func (s *State) stream(id *pecanv1.StreamId) (*pecanv1.StoredStream, error) {
	_, epoch, err := s.epoch(id.GetJobId(), id.GetEpoch())
	if err != nil {
		return nil, err
	}
	if int64(id.GetStream()) >= int64(len(epoch.Streams)) {
		return nil, fmt.Errorf("no stream %d in epoch %d of job %q", id.GetStream(), id.GetEpoch(), id.GetJobId())
	}
	return epoch.Streams[id.GetStream()], nil
}

func findEpoch(job *pecanv1.StoredJob, number uint64) *pecanv1.StoredEpoch {
	i, ok := slices.BinarySearchFunc(job.Epochs, number, func(e *pecanv1.StoredEpoch, n uint64) int { return cmp.Compare(e.Epoch, n) })
	if !ok {
		return nil
	}
	return job.Epochs[i]
}

// findClosed gives one of the newest closed epochs, or nil.
func findClosed(job *pecanv1.StoredJob, number uint64) *pecanv1.ClosedEpoch {
	i, ok := slices.BinarySearchFunc(job.Closed, number, func(e *pecanv1.ClosedEpoch, n uint64) int { return cmp.Compare(e.Epoch, n) })
	if !ok {
		return nil
	}
	return job.Closed[i]
}

func findPass(epoch *pecanv1.StoredEpoch, clientID string) *pecanv1.StoredPass {
	for _, pass := range epoch.Passes {
		if pass.ClientId == clientID {
			return pass
		}
	}
	return nil
}

func private(job *pecanv1.StoredJob) bool { return job.Name == "" }

// isClosing tells whether a stream is the closing stream of its epoch.
func isClosing(job *pecanv1.StoredJob, stream *pecanv1.StoredStream) bool {
	return job.Plan.HasClosing() && stream.Stream == uint32(job.Plan.GetNumStreams())
}

// delivered tells whether nothing of an epoch is left to deliver.
func delivered(epoch *pecanv1.StoredEpoch) bool {
	for _, stream := range epoch.Streams {
		if !stream.Delivered {
			return false
		}
	}
	return len(epoch.Streams) > 0
}

func elements(epoch *pecanv1.StoredEpoch) uint64 {
	sum := uint64(0)
	for _, stream := range epoch.Streams {
		if stream.Delivered {
			sum += stream.Count
		}
	}
	return sum
}

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for key := range m {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	return keys
}
