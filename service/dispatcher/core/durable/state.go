package durable

import (
	"cmp"
	"slices"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
)

const (
	// maxRequests bounds the remembered requests of a client.
	maxRequests = 64
	// maxClosedEpochs bounds the remembered closed epochs of a job.
	maxClosedEpochs = 64
	// maxStreams bounds the streams of one epoch, closing streams included.
	maxStreams = 1<<16 + 1<<12 + 1
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
	jobs        map[string]*Job
	caches      map[string]*pecanv1.StoredCache
	// cachesUsedS is the time of day of the last record of used caches, in seconds since 1970; 0 without one.
	cachesUsedS int64
	// learned has what is known of graphs by their fingerprints.
	learned map[string]*learnedGraph

	// workers has the workers by number.
	workers map[uint32]*pecanv1.WorkerAddress

	// The fields below follow from those above.
	//
	// ordered has the jobs in the order of their creation, and named the id of each name.
	ordered []*Job
	named   map[string]string
	// uses counts the datasets with each graph. unused has the known graphs that no dataset has. learnedBytes is the size of
	// what is known.
	uses         map[string]int
	unused       unusedGraphs
	learnedBytes int
	readers      readerIndex
	// opened has the open epochs by the number of the record that opened them.
	opened map[uint64]*Epoch
	// sizes has the size of each cache by its key.
	sizes map[string]CacheSize
	// leases has the streams that each worker holds, by its id. numbers has the numbers of each worker.
	leases  map[string]map[Ref]struct{}
	numbers map[string][]uint32
	// ended has the leases that the last record ended because nobody needs their streams.
	ended []EndedLease
}

// NewState returns the state before any record.
func NewState() *State {
	return &State{
		datasets: map[string]*pecanv1.StoredDataset{}, clients: map[string]*pecanv1.StoredClient{},
		jobs: map[string]*Job{}, named: map[string]string{}, caches: map[string]*pecanv1.StoredCache{}, sizes: map[string]CacheSize{},
		learned: map[string]*learnedGraph{}, uses: map[string]int{}, readers: newReaderIndex(),
		workers: map[uint32]*pecanv1.WorkerAddress{}, opened: map[uint64]*Epoch{}, leases: map[string]map[Ref]struct{}{}, numbers: map[string][]uint32{},
	}
}

func (s *State) addDataset(dataset *pecanv1.StoredDataset) {
	s.removeDataset(dataset.DatasetId)
	s.datasets[dataset.DatasetId] = dataset
	s.use(dataset.Fingerprint, 1)
}

func (s *State) removeDataset(id string) {
	if dataset := s.datasets[id]; dataset != nil {
		delete(s.datasets, id)
		s.use(dataset.Fingerprint, -1)
	}
}

func (s *State) addJob(job *Job) {
	s.jobs[job.JobId] = job
	s.ordered = append(s.ordered, job)
	if job.Name != "" {
		s.named[job.Name] = job.JobId
	}
}

func (s *State) addEpoch(e *Epoch) {
	at, _ := slices.BinarySearchFunc(e.Job.Epochs, e.Epoch, func(e *Epoch, n uint64) int { return cmp.Compare(e.Epoch, n) })
	e.Job.Epochs = slices.Insert(e.Job.Epochs, at, e)
	s.opened[e.Opened] = e
}
