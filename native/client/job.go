package client

import (
	"context"
	"os"
	"sync"

	"github.com/google/uuid"
	"google.golang.org/protobuf/proto"

	"github.com/pecan-ml/pecan/native/client/epoch"
	"github.com/pecan-ml/pecan/native/client/pace"
	"github.com/pecan-ml/pecan/native/client/wait"
	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/proto/reason"
)

// JobSpec describes the requested job.
type JobSpec struct {
	DatasetID string
	// Name shares the job with all trainers that give the same name. If it is empty, the job belongs to this session alone.
	Name    string
	Options *pecanv1.JobOptions
	// Division is how a saved position divides the dataset, nil without one.
	Division *pecanv1.Division
	// LocalWorkers lets the dispatcher decide how many local workers this process runs.
	LocalWorkers bool
	// FileBytes is the size of the files that the dataset names, 0 if it is not known.
	FileBytes int64
	// FileRecords is about the number of their records, 0 if it is not known.
	FileRecords int64
}

// seeded returns a copy of the spec with the seed and the division of a saved position, or of a lost job.
func (s JobSpec) seeded(seed uint64, streams, group int32) JobSpec {
	s.Division = &pecanv1.Division{NumStreams: streams, Group: group}
	options := &pecanv1.JobOptions{}
	proto.Merge(options, s.Options)
	s.Options = options
	s.Options.Seed, s.Options.SeedSet = seed, true
	return s
}

// Job is one consumption of a dataset.
type Job struct {
	session *Session
	// Each Job has a consumer of its own. Two jobs with one name in one process therefore share it as two processes would.
	// The dispatcher removes the consumer of a closed job at once.
	consumer *epoch.Consumer
	durable  bool
	created  bool
	workers  int
	// sizesLocal is set if the dispatcher decides on local workers.
	sizesLocal bool
	// pace measures what all iterations of the job take.
	pace pace.Meter

	mu sync.Mutex
	// timeoutS is the client timeout that the dispatcher reported last: after this many seconds without a
	// heartbeat it removes this consumer.
	timeoutS float64
	// wantedLocal is the dispatcher's decision on local workers; nil before.
	wantedLocal *pecanv1.WantedLocalWorkers
	// lost is set when the dispatcher does not know the job any more.
	lost   error
	closed bool
	// nextPass is the number of the next pass. It counts the passes that the dispatcher has opened.
	nextPass uint64
	// lastOpening is closed when the newest epoch is open, or will never be.
	lastOpening chan struct{}
	// prefetched is the prefetched epoch, which no iteration has adopted.
	prefetched *epoch.Epoch
	// nextNumber is the number of the next epoch of a job that replaced a lost one, because its dispatcher
	// would count from 0. The client sends it with every epoch that has no other position until an epoch with
	// that number is open. From there the dispatcher counts on. numbersSeen is the number after all epochs
	// that iterations began with.
	nextNumber, numbersSeen uint64
	iterations              map[*Iteration]struct{}
	// placement is the last logged decision on the job's workers, nil before the first.
	// placedBy is the number of the heartbeat that brought it.
	placement *pecanv1.Placement
	placedBy  uint64
	// advised is set if the log has what a wider order tolerance would save.
	advised bool
	// lastCount is how many elements the last completely read pass had; -1 before the first.
	lastCount int64
}

// CreateJob finds the job with that name or creates one.
func (s *Session) CreateJob(ctx context.Context, spec JobSpec) (*Job, error) {
	request := &pecanv1.CreateJobRequest{
		RequestId: uuid.NewString(), ClientId: uuid.NewString(), DatasetId: spec.DatasetID, JobName: spec.Name, Options: spec.Options,
		ClientHost: s.config.Host, ClientPid: int64(os.Getpid()), Division: spec.Division, FileBytes: spec.FileBytes, FileRecords: spec.FileRecords,
	}
	var answer *pecanv1.CreateJobResponse
	var asked wait.Time
	err := s.link.Ask(ctx, "create the job at", func(ctx context.Context) error {
		var err error
		asked = wait.Now()
		answer, err = s.link.API().CreateJob(ctx, request)
		return err
	})
	if err != nil {
		return nil, err
	}
	job := &Job{
		session: s, durable: answer.GetDurable(), created: answer.GetCreated(), workers: int(answer.GetWorkers()), timeoutS: answer.GetClientTimeoutS(),
		sizesLocal: spec.LocalWorkers, iterations: map[*Iteration]struct{}{}, lastCount: -1,
	}
	job.consumer = &epoch.Consumer{
		Link: s.link, Workers: s.workers, Pool: s.pool, Job: job, JobID: answer.GetJobId(), ClientID: request.GetClientId(), Request: request,
		Plan: answer.GetPlan(), Options: answer.GetOptions(),
	}
	job.consumer.RenewLease(asked, job.timeoutS)
	if job.consumer.Plan == nil {
		job.consumer.Plan = &pecanv1.Plan{Repeat: 1, Cardinality: -2, AssertedCardinality: -2}
	}
	if err := s.add(job, answer.GetClusterId()); err != nil {
		return nil, err
	}
	// Local workers serve the job once the dispatcher knows where its trainer is.
	job.sendHeartbeat()
	return job, nil
}

func (s *Session) add(job *Job, cluster string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return reason.New(reason.Closed, "create the job: the session was closed meanwhile")
	}
	// A restarted dispatcher may belong to another cluster. Workers refuse a client that names another
	// cluster than theirs.
	s.link.SetCluster(cluster)
	s.jobs[job] = struct{}{}
	return nil
}

// ID returns the dispatcher's name of the job.
func (j *Job) ID() string { return j.consumer.JobID }

// Plan says how the dataset is divided into streams, and why.
func (j *Job) Plan() *pecanv1.Plan { return j.consumer.Plan }

// Options returns the job's options, with values that the dispatcher filled in.
func (j *Job) Options() *pecanv1.JobOptions { return j.consumer.Options }

// Durable reports whether the job survives a restart of the dispatcher.
func (j *Job) Durable() bool { return j.durable }

// Created is false if the job existed already.
func (j *Job) Created() bool { return j.created }

// Workers returns how many workers were registered when the job was created or found.
func (j *Job) Workers() int { return j.workers }

// remove drops an iteration that ended or was closed.
func (j *Job) remove(it *Iteration) {
	j.mu.Lock()
	defer j.mu.Unlock()
	delete(j.iterations, it)
}

// Close ends the job's iterations and the prefetched epoch, and sends the dispatcher a goodbye. Idempotent.
func (j *Job) Close() error {
	if err := j.session.link.CheckFork(); err != nil {
		return err
	}
	j.shut()
	return nil
}

func (j *Job) shut() {
	j.session.mu.Lock()
	delete(j.session.jobs, j)
	j.session.mu.Unlock()
	j.mu.Lock()
	if j.closed {
		j.mu.Unlock()
		return
	}
	j.closed = true
	ahead := j.prefetched
	j.prefetched = nil
	iterations := make([]*Iteration, 0, len(j.iterations))
	for it := range j.iterations {
		iterations = append(iterations, it)
	}
	j.mu.Unlock()
	for _, it := range iterations {
		it.shut()
	}
	if ahead != nil {
		ahead.Close()
	}
	j.sendGoodbye()
}
