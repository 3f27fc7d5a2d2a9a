package core

import (
	"maps"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/proto/reason"
	"github.com/pecan-ml/pecan/service/dispatcher/core/durable"
)

// createJob finds or creates a job, and adds the client to it. Without a plan, it asks the caller for one before it creates
// the job.
func (c *Core) createJob(in CreateJob) (any, error) {
	req := in.Request
	if job := c.jobOfRequest(req); job != nil {
		c.noteAlive(req.ClientId, job.JobId)
		return c.createJobReply(job, false), nil
	}
	dataset := c.state.Dataset(req.DatasetId)
	if dataset == nil {
		return nil, reason.New(reason.DatasetUnknown, "create job: dataset %q is not registered; register it first", req.DatasetId)
	}
	existing := c.state.JobNamed(req.JobName)
	if err := c.checkLimits(existing, req); err != nil {
		return nil, err
	}
	if err := c.checkTarget(req.Options); err != nil {
		return nil, err
	}
	if existing != nil && !c.superseded(existing, dataset, req) {
		if difference := c.jobDifference(existing, dataset, req.Options); difference != "" {
			return nil, reason.New(reason.JobMismatch, "create job: job %q is being read with %s; give the same dataset and options to share it, or choose another job_name", req.JobName, difference)
		}
		if existing.Error != nil {
			return nil, reason.FromDetail(existing.Error)
		}
		c.joinJob(existing, req)
		return c.createJobReply(existing, false), nil
	}
	if err := c.checkTenant(req.Options); err != nil {
		return nil, err
	}
	if in.Plan == nil {
		return PlanNeeded{Dataset: dataset, Profile: c.state.Profile(dataset.Fingerprint).GetNodes(), Caches: c.state.CompleteCaches()}, nil
	}
	if existing != nil {
		c.removeJob(existing, "its name is reused")
	}
	options := proto.Clone(req.Options).(*pecanv1.JobOptions)
	if !options.SeedSet {
		options.Seed = in.Seed
	}
	if mode := in.Plan.GetMode(); mode != pecanv1.Mode_MODE_UNSPECIFIED && mode != options.Mode {
		options.RequestedMode, options.Mode = options.Mode, mode
		c.warn("job runs in a weaker mode than requested", "job", in.JobID, "name", req.JobName, "asked", options.RequestedMode.String(), "mode", mode.String())
	}
	c.emit(&pecanv1.Record{Kind: &pecanv1.Record_JobCreated{JobCreated: &pecanv1.JobCreated{
		JobId: in.JobID, Name: req.JobName, DatasetId: req.DatasetId, Options: options, Plan: in.Plan,
	}}})
	delete(c.idleDatasets, req.DatasetId)
	job := c.state.Job(in.JobID)
	c.joinJob(job, req)
	c.event("job created", "job", job.JobId, "name", job.Name, "dataset", job.DatasetId, "mode", options.Mode.String(),
		"class", in.Plan.Determinism.String(), "streams", in.Plan.NumStreams, "plan", in.Plan.Hash, "seed", options.Seed)
	return c.createJobReply(job, true), nil
}

func (c *Core) createJobReply(job *durable.Job, created bool) *pecanv1.CreateJobResponse {
	return &pecanv1.CreateJobResponse{
		JobId: job.JobId, Created: created, Plan: job.Plan, Options: job.Options,
		ClientTimeoutS: c.cfg.ClientTimeout.Seconds(), Workers: int32(len(c.workers)), ClusterId: c.state.ClusterID(),
	}
}

// checkLimits refuses a job or client above the limits. A job that exists, or whose name is reused, does not
// count.
func (c *Core) checkLimits(existing *durable.Job, req *pecanv1.CreateJobRequest) error {
	if n := len(c.state.Jobs()); existing == nil && n >= c.cfg.MaxJobs {
		return reason.New(reason.ServiceLimit, "create job: %d jobs are open, the dispatcher accepts at most %d (--max-jobs); jobs of trainers that left are removed after --client-timeout, named ones after --job-timeout more", n, c.cfg.MaxJobs)
	}
	if n := c.state.Clients(); c.state.Client(req.ClientId) == nil && n >= c.cfg.MaxClients {
		return reason.New(reason.ServiceLimit, "create job: %d trainers' datasets are being read, the dispatcher accepts at most %d (--max-clients); those of lost trainers are removed after --client-timeout", n, c.cfg.MaxClients)
	}
	return nil
}

// checkTarget refuses target_workers="LOCAL" where each worker of the configured list has its part of the source.
func (c *Core) checkTarget(options *pecanv1.JobOptions) error {
	policy := options.GetSharding()
	if options.GetTargetWorkers() != pecanv1.TargetWorkers_TARGET_WORKERS_LOCAL || len(c.cfg.WorkerAddresses) == 0 ||
		policy == pecanv1.Sharding_SHARDING_DYNAMIC || policy == pecanv1.Sharding_SHARDING_OFF {
		return nil
	}
	return reason.New(reason.BadArgument, "create job: target_workers=\"LOCAL\" excludes sharding policy %s, which gives each worker of the dispatcher's list (--worker-addresses) its part; give target_workers=\"ANY\", or the policy DYNAMIC", strings.ToUpper(pecanv1.Word(policy, "SHARDING_")))
}

// jobOfRequest finds the job that an earlier copy of the same request got.
func (c *Core) jobOfRequest(req *pecanv1.CreateJobRequest) *durable.Job {
	client := c.state.Client(req.ClientId)
	if client == nil || req.RequestId == "" {
		return nil
	}
	for _, known := range client.Requests {
		if known.RequestId == req.RequestId && !known.Opened {
			return c.state.Job(known.JobId)
		}
	}
	return nil
}

// superseded reports whether a job gives its name to a new one. It does so if it has no client, and if it is finished, has
// failed, or differs from the request.
func (c *Core) superseded(job *durable.Job, dataset *pecanv1.StoredDataset, req *pecanv1.CreateJobRequest) bool {
	if len(job.ClientIds) > 0 {
		return false
	}
	finished := job.NextEpoch > 0 && !slices.ContainsFunc(job.Epochs, func(e *durable.Epoch) bool { return !e.Delivered() })
	return finished || job.Error != nil || c.jobDifference(job, dataset, req.Options) != ""
}

// joinJob adds a client to a job.
func (c *Core) joinJob(job *durable.Job, req *pecanv1.CreateJobRequest) {
	if c.state.Client(req.ClientId) == nil {
		c.emit(&pecanv1.Record{Kind: &pecanv1.Record_ClientJoined{ClientJoined: &pecanv1.ClientJoined{
			ClientId: req.ClientId, Host: req.ClientHost, Pid: req.ClientPid,
		}}})
		c.addClient(req.ClientId)
		c.event("client joined", "client", req.ClientId, "host", req.ClientHost, "pid", req.ClientPid)
	}
	c.emit(&pecanv1.Record{Kind: &pecanv1.Record_JobJoined{JobJoined: &pecanv1.JobJoined{
		JobId: job.JobId, ClientId: req.ClientId, RequestId: req.RequestId,
	}}})
	delete(c.idleJobs, job.JobId)
	c.placements.ClientsChanged(job)
	c.noteAlive(req.ClientId, job.JobId)
}

// leaveJob removes a client from a job and from its epochs. A private job ends with its client.
func (c *Core) leaveJob(job *durable.Job, clientID string) {
	for _, epoch := range slices.Clone(job.Epochs) {
		if durable.FindPass(epoch, clientID) != nil {
			c.leaveEpoch(job, epoch, clientID, false)
		}
	}
	c.endWatches(func(w *watchState) bool { return w.client == clientID && w.job == job.JobId },
		reason.New(reason.ClientUnknown, "watch epoch: client %q no longer holds job %q", clientID, job.JobId))
	c.emit(&pecanv1.Record{Kind: &pecanv1.Record_JobLeft{JobLeft: &pecanv1.JobLeft{JobId: job.JobId, ClientId: clientID}}})
	c.placements.ClientsChanged(job)
	if client := c.clients[clientID]; client != nil {
		delete(client.jobs, job.JobId)
	}
	if len(job.ClientIds) > 0 {
		return
	}
	if durable.Private(job) {
		c.removeJob(job, "its client left")
	} else {
		c.idleJobs[job.JobId] = c.now
	}
}

// removeJob ends the epochs of a job and forgets the job.
func (c *Core) removeJob(job *durable.Job, why string) {
	for _, epoch := range slices.Clone(job.Epochs) {
		c.endEpoch(job, epoch)
	}
	// Metrics may have come after the end of the last epoch.
	c.measureCaches(job)
	maps.DeleteFunc(c.caches.keys, func(at jobStep, _ string) bool { return at.job == job.JobId })
	delete(c.caches.decisions, job.JobId)
	c.emit(&pecanv1.Record{Kind: &pecanv1.Record_JobRemoved{JobRemoved: &pecanv1.JobRemoved{JobId: job.JobId}}})
	delete(c.idleJobs, job.JobId)
	delete(c.profiles, job.JobId)
	delete(c.sources, job.JobId)
	for _, worker := range c.workers {
		worker.totals.Forget(job.JobId)
	}
	c.placements.RemoveJob(job.JobId)
	c.event("job removed", "job", job.JobId, "name", job.Name, "why", why)
}

// expireJobs removes named jobs after JobTimeout without a client.
func (c *Core) expireJobs() {
	for _, job := range slices.Clone(c.state.Jobs()) {
		if len(job.ClientIds) > 0 {
			delete(c.idleJobs, job.JobId)
			continue
		}
		since, ok := c.idleJobs[job.JobId]
		if !ok {
			c.idleJobs[job.JobId] = c.now
		} else if c.now-since > c.cfg.JobTimeout {
			c.removeJob(job, "no client came back")
		}
	}
}

// failJob ends a job with an error.
func (c *Core) failJob(job *durable.Job, detail *pecanv1.ErrorDetail) {
	if job.Error != nil {
		return
	}
	c.emit(&pecanv1.Record{Kind: &pecanv1.Record_JobFailed{JobFailed: &pecanv1.JobFailed{JobId: job.JobId, Error: detail}}})
	c.warn("job failed", "job", job.JobId, "reason", detail.GetReason(), "error", detail.GetMessage())
}
