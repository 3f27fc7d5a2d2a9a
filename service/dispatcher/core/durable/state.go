package durable

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"

	"google.golang.org/protobuf/proto"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
)

const (
	// maxRequests bounds the remembered requests of a client.
	maxRequests = 64
	// maxClosedEpochs bounds the remembered closed epochs of a job.
	maxClosedEpochs = 64
	// maxStreams bounds the streams of one epoch.
	maxStreams = 1 << 16
	// MaxEpoch bounds the number of an epoch.
	MaxEpoch = 1 << 62
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
	orders      map[OrderKey]*pecanv1.StoredOrder
	// profiles has the costs of a graph's steps by its fingerprint.
	profiles map[string]*pecanv1.StoredProfile

	// ordered has the jobs in the order of their creation, and named the id of each name. Both follow from jobs.
	ordered []*pecanv1.StoredJob
	named   map[string]string
}

// NewState returns the state before any record.
func NewState() *State {
	return &State{
		datasets: map[string]*pecanv1.StoredDataset{}, clients: map[string]*pecanv1.StoredClient{},
		jobs: map[string]*pecanv1.StoredJob{}, named: map[string]string{}, caches: map[string]*pecanv1.StoredCache{},
		orders: map[OrderKey]*pecanv1.StoredOrder{}, profiles: map[string]*pecanv1.StoredProfile{},
	}
}

// Restore returns the state of a snapshot.
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
		s.orders[KeyOf(decided)] = decided
	}
	for _, profile := range snapshot.Profiles {
		s.profiles[profile.Fingerprint] = profile
	}
	for _, job := range snapshot.Jobs {
		s.addJob(job)
		for _, epoch := range job.Epochs {
			for _, stream := range epoch.Streams {
				// Old snapshots have no assignment numbers.
				if stream.Consumer != "" && stream.Assignment == 0 {
					stream.Assignment = 1
				}
			}
		}
	}
	slices.SortFunc(s.ordered, func(a, b *pecanv1.StoredJob) int { return cmp.Compare(a.Sequence, b.Sequence) })
	return s, nil
}

// Snapshot returns the whole state; equal states have equal snapshots. It shares memory with the state.
func (s *State) Snapshot() *pecanv1.Snapshot {
	snapshot := &pecanv1.Snapshot{
		Applied: s.applied, ClusterId: s.clusterID, Incarnation: s.incarnation, LastLease: s.lastLease,
	}
	for _, id := range slices.Sorted(maps.Keys(s.datasets)) {
		snapshot.Datasets = append(snapshot.Datasets, s.datasets[id])
	}
	for _, id := range slices.Sorted(maps.Keys(s.clients)) {
		snapshot.Clients = append(snapshot.Clients, s.clients[id])
	}
	for _, id := range slices.Sorted(maps.Keys(s.jobs)) {
		snapshot.Jobs = append(snapshot.Jobs, s.jobs[id])
	}
	for _, key := range slices.Sorted(maps.Keys(s.caches)) {
		snapshot.Caches = append(snapshot.Caches, s.caches[key])
	}
	snapshot.Orders = s.listOrders()
	for _, fingerprint := range slices.Sorted(maps.Keys(s.profiles)) {
		snapshot.Profiles = append(snapshot.Profiles, s.profiles[fingerprint])
	}
	return snapshot
}

// Marshal returns the snapshot in bytes: equal states have equal bytes.
func (s *State) Marshal() ([]byte, error) {
	data, err := proto.MarshalOptions{Deterministic: true}.Marshal(s.Snapshot())
	if err != nil {
		return nil, fmt.Errorf("write snapshot: %w", err)
	}
	return data, nil
}

// Hash returns the SHA-256 of the state.
func (s *State) Hash() string {
	data, err := s.Marshal()
	if err != nil {
		return err.Error()
	}
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

func (s *State) addJob(job *pecanv1.StoredJob) {
	s.jobs[job.JobId] = job
	s.ordered = append(s.ordered, job)
	if job.Name != "" {
		s.named[job.Name] = job.JobId
	}
}
