package core

import (
	"fmt"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/proto/reason"
)

func (c *Core) addDataset(in AddDataset) (*pecanv1.RegisterDatasetResponse, error) {
	ids := in.DerivedIDs
	if in.WantedID != "" {
		ids = []string{in.WantedID}
	}
	var known *pecanv1.StoredDataset
	for _, id := range ids {
		known = c.state.datasets[id]
		if known == nil {
			if n := len(c.state.datasets); n >= c.cfg.MaxDatasets {
				return nil, reason.New(reason.ServiceLimit, "register dataset: %d datasets are registered, the dispatcher takes at most %d (--max-datasets); those that no job uses are forgotten after --dataset-timeout, if it is set", n, c.cfg.MaxDatasets)
			}
			dataset := &pecanv1.StoredDataset{DatasetId: id, Fingerprint: in.Fingerprint, Spec: in.Spec, GraphBytes: in.GraphBytes}
			c.emit(&pecanv1.Record{Kind: &pecanv1.Record_DatasetAdded{DatasetAdded: &pecanv1.DatasetAdded{Dataset: dataset}}})
			c.idleDatasets[id] = c.now
			c.event("dataset registered", "dataset", id, "graph_bytes", in.GraphBytes)
			return &pecanv1.RegisterDatasetResponse{DatasetId: id, Fingerprint: in.Fingerprint, Created: true}, nil
		}
		if known.Fingerprint == in.Fingerprint && sameSpec(known.Spec, in.Spec) {
			if _, idle := c.idleDatasets[id]; idle {
				c.idleDatasets[id] = c.now
			}
			return &pecanv1.RegisterDatasetResponse{DatasetId: id, Fingerprint: in.Fingerprint}, nil
		}
	}
	if known == nil {
		return nil, reason.New(reason.Internal, "register dataset: no id was given")
	}
	return nil, reason.New(reason.DatasetMismatch, "register dataset: the id %q belongs to a dataset with %s; choose another dataset_id, or leave it out to have one chosen",
		known.DatasetId, datasetDifference(known, in))
}

func datasetDifference(known *pecanv1.StoredDataset, in AddDataset) string {
	if known.Fingerprint != in.Fingerprint {
		return fmt.Sprintf("another graph (fingerprint %s, this one has %s)", known.Fingerprint, in.Fingerprint)
	}
	if known.Spec.GetCompression() != in.Spec.GetCompression() {
		return fmt.Sprintf("the same graph but compression %s instead of %s", known.Spec.GetCompression(), in.Spec.GetCompression())
	}
	return "the same graph but another element structure"
}

// sameSpec compares all that is registered with a graph; the TensorFlow that wrote it does not matter.
func sameSpec(a, b *pecanv1.DatasetSpec) bool {
	return sameElements(a, b) && a.GetCompression() == b.GetCompression()
}

// sameElements compares what trainers see.
func sameElements(a, b *pecanv1.DatasetSpec) bool {
	plain := func(s *pecanv1.DatasetSpec) *pecanv1.DatasetSpec {
		return &pecanv1.DatasetSpec{Components: s.GetComponents(), ElementSpec: s.GetElementSpec()}
	}
	return proto.Equal(plain(a), plain(b))
}

// word is an enum's value as callers write it.
func word(value fmt.Stringer, prefix string) string {
	return strings.ToLower(strings.TrimPrefix(value.String(), prefix))
}

func (c *Core) createJob(in CreateJob) (any, error) {
	req := in.Request
	if job := c.jobOfRequest(req); job != nil {
		c.seen(req.ClientId, job.JobId)
		return c.createJobReply(job, false), nil
	}
	dataset := c.state.datasets[req.DatasetId]
	if dataset == nil {
		return nil, reason.New(reason.DatasetUnknown, "create job: dataset %q is not registered; register it first", req.DatasetId)
	}
	existing := c.state.jobs[c.state.named[req.JobName]]
	if err := c.room(existing, req); err != nil {
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
	if in.Plan == nil {
		return PlanNeeded{Dataset: dataset}, nil
	}
	if existing != nil {
		c.removeJob(existing, "its name is used afresh")
	}
	options := proto.Clone(req.Options).(*pecanv1.JobOptions)
	if !options.SeedSet {
		options.Seed = in.Seed
	}
	if mode := in.Plan.GetMode(); mode != pecanv1.Mode_MODE_UNSPECIFIED && mode != options.Mode {
		options.RequestedMode, options.Mode = options.Mode, mode
		c.warn("job runs in a weaker mode than was asked for", "job", in.JobID, "name", req.JobName, "asked", options.RequestedMode.String(), "mode", mode.String())
	}
	c.emit(&pecanv1.Record{Kind: &pecanv1.Record_JobCreated{JobCreated: &pecanv1.JobCreated{
		JobId: in.JobID, Name: req.JobName, DatasetId: req.DatasetId, Options: options, Plan: in.Plan,
	}}})
	delete(c.idleDatasets, req.DatasetId)
	job := c.state.jobs[in.JobID]
	c.joinJob(job, req)
	c.event("job created", "job", job.JobId, "name", job.Name, "dataset", job.DatasetId, "mode", options.Mode.String(),
		"class", in.Plan.Determinism.String(), "streams", in.Plan.NumStreams, "plan", in.Plan.Hash, "seed", options.Seed)
	return c.createJobReply(job, true), nil
}

func (c *Core) createJobReply(job *pecanv1.StoredJob, created bool) *pecanv1.CreateJobResponse {
	return &pecanv1.CreateJobResponse{
		JobId: job.JobId, Created: created, Plan: job.Plan, Options: job.Options,
		ClientTimeoutS: c.cfg.ClientTimeout.Seconds(), Workers: int32(len(c.workers)), ClusterId: c.state.clusterID,
	}
}

// room refuses a job or client more than there may be. A job that exists, or whose name is used afresh, is none more.
func (c *Core) room(existing *pecanv1.StoredJob, req *pecanv1.CreateJobRequest) error {
	if n := len(c.state.ordered); existing == nil && n >= c.cfg.MaxJobs {
		return reason.New(reason.ServiceLimit, "create job: %d jobs are open, the dispatcher takes at most %d (--max-jobs); jobs whose trainers left are forgotten after --client-timeout, named ones after --job-timeout more", n, c.cfg.MaxJobs)
	}
	if n := len(c.state.clients); c.state.clients[req.ClientId] == nil && n >= c.cfg.MaxClients {
		return reason.New(reason.ServiceLimit, "create job: %d trainers' datasets are being read, the dispatcher takes at most %d (--max-clients); those of trainers that are gone are forgotten after --client-timeout", n, c.cfg.MaxClients)
	}
	return nil
}

// jobOfRequest finds what an earlier copy of the same request gave.
func (c *Core) jobOfRequest(req *pecanv1.CreateJobRequest) *pecanv1.StoredJob {
	client := c.state.clients[req.ClientId]
	if client == nil || req.RequestId == "" {
		return nil
	}
	for _, known := range client.Requests {
		if known.RequestId == req.RequestId && !known.Opened {
			return c.state.jobs[known.JobId]
		}
	}
	return nil
}

// superseded tells whether a job that still has a name gives it up to a new one: nobody holds it, and it is finished, has
// failed, or is not what is asked for.
func (c *Core) superseded(job *pecanv1.StoredJob, dataset *pecanv1.StoredDataset, req *pecanv1.CreateJobRequest) bool {
	if len(job.ClientIds) > 0 {
		return false
	}
	finished := job.NextEpoch > 0 && !slices.ContainsFunc(job.Epochs, func(e *pecanv1.StoredEpoch) bool { return !delivered(e) })
	return finished || job.Error != nil || c.jobDifference(job, dataset, req.Options) != ""
}

// jobDifference says in words in what a request differs from a job, empty when in nothing.
func (c *Core) jobDifference(job *pecanv1.StoredJob, dataset *pecanv1.StoredDataset, options *pecanv1.JobOptions) string {
	var words []string
	if known := c.state.datasets[job.DatasetId]; known == nil || known.Fingerprint != dataset.Fingerprint {
		words = append(words, fmt.Sprintf("another dataset (fingerprint %s, this one has %s)", job.Plan.GetFingerprint(), dataset.Fingerprint))
	} else if !sameElements(known.Spec, dataset.Spec) {
		words = append(words, fmt.Sprintf("the same graph but another element structure (dataset %s, this one is %s)", known.DatasetId, dataset.DatasetId))
	}
	differ := func(name string, theirs, ours any) {
		if theirs != ours {
			words = append(words, fmt.Sprintf("%s %v instead of %v", name, theirs, ours))
		}
	}
	has := job.Options
	asked := has.GetMode()
	if has.GetRequestedMode() != pecanv1.Mode_MODE_UNSPECIFIED {
		asked = has.GetRequestedMode()
	}
	differ("mode", word(asked, "MODE_"), word(options.GetMode(), "MODE_"))
	differ("allow_nondeterministic", has.GetAllowNondeterministic(), options.GetAllowNondeterministic())
	differ("sharding", word(has.GetSharding(), "SHARDING_"), word(options.GetSharding(), "SHARDING_"))
	differ("compression", word(has.GetCompression(), "COMPRESSION_"), word(options.GetCompression(), "COMPRESSION_"))
	differ("max_element_bytes", has.GetMaxElementBytes(), options.GetMaxElementBytes())
	differ("payload_checksum", has.GetPayloadChecksum(), options.GetPayloadChecksum())
	differ("order", orderWord(has), orderWord(options))
	if orderWord(has) == orderWord(options) {
		differ("order_tolerance", toleranceWord(has), toleranceWord(options))
	}
	if options.GetSeedSet() && (!has.GetSeedSet() || has.GetSeed() != options.GetSeed()) {
		if has.GetSeedSet() {
			differ("seed", has.GetSeed(), options.GetSeed())
		} else {
			words = append(words, fmt.Sprintf("a seed chosen by the service instead of %d", options.GetSeed()))
		}
	}
	return strings.Join(words, ", ")
}

// orderWord is who decides the order of steps; jobs of older dispatchers do not say, and have it off.
func orderWord(options *pecanv1.JobOptions) string {
	if options.GetOrder() == pecanv1.Order_ORDER_UNSPECIFIED {
		return word(pecanv1.Order_ORDER_OFF, "ORDER_")
	}
	return word(options.GetOrder(), "ORDER_")
}

// toleranceWord is how far elements may differ in another order; empty where the order stays, and it matters to nobody.
func toleranceWord(options *pecanv1.JobOptions) string {
	if orderWord(options) == "off" {
		return ""
	}
	return word(options.EffectiveTolerance(), "ORDER_TOLERANCE_")
}

func (c *Core) joinJob(job *pecanv1.StoredJob, req *pecanv1.CreateJobRequest) {
	if c.state.clients[req.ClientId] == nil {
		c.emit(&pecanv1.Record{Kind: &pecanv1.Record_ClientJoined{ClientJoined: &pecanv1.ClientJoined{
			ClientId: req.ClientId, Host: req.ClientHost, Pid: req.ClientPid,
		}}})
		c.clients[req.ClientId] = newClientState(c.now)
		c.event("client joined", "client", req.ClientId, "host", req.ClientHost, "pid", req.ClientPid)
	}
	c.emit(&pecanv1.Record{Kind: &pecanv1.Record_JobJoined{JobJoined: &pecanv1.JobJoined{
		JobId: job.JobId, ClientId: req.ClientId, RequestId: req.RequestId,
	}}})
	delete(c.idleJobs, job.JobId)
	c.seen(req.ClientId, job.JobId)
}

// seen notes that a client lives, and that it holds a job.
func (c *Core) seen(clientID, jobID string) {
	client := c.clients[clientID]
	if client == nil {
		return
	}
	client.lastSeen = c.now
	if jobID != "" {
		client.jobs[jobID] = c.now
	}
}

// member finds a job that the client holds.
func (c *Core) member(what, clientID, jobID string) (*pecanv1.StoredJob, error) {
	if c.state.clients[clientID] == nil {
		return nil, c.unknownClient(what, clientID)
	}
	c.seen(clientID, "")
	job := c.state.jobs[jobID]
	if job == nil || !slices.Contains(job.ClientIds, clientID) {
		return nil, reason.New(reason.JobUnknown, "%s: job %q is not held by client %q; it ended, or the dispatcher gave it up when it did not hear of the client for %v", what, jobID, clientID, c.cfg.ClientTimeout)
	}
	c.seen(clientID, jobID)
	return job, nil
}

func (c *Core) unknownClient(what, clientID string) error {
	return reason.New(reason.ClientUnknown, "%s: client %q is not known; it said goodbye, was silent for more than %v, or the dispatcher lost its memory in a restart without a work directory. Make the dataset's iterator anew", what, clientID, c.cfg.ClientTimeout)
}

func (c *Core) clientHeartbeat(req *pecanv1.ClientHeartbeatRequest) error {
	client := c.clients[req.ClientId]
	if client == nil || c.state.clients[req.ClientId] == nil {
		return c.unknownClient("heartbeat", req.ClientId)
	}
	client.lastSeen = c.now
	if req.ClientTimeoutS > 0 && req.ClientTimeoutS <= c.cfg.ClientTimeout.Seconds() {
		client.untold = false
	}
	if req.Number == 0 || req.Number > client.beats {
		client.beats = req.Number
		c.hearOfPasses(req, client)
	}
	var missing []string
	for _, id := range req.JobIds {
		if job := c.state.jobs[id]; job != nil && slices.Contains(job.ClientIds, req.ClientId) {
			client.jobs[id] = c.now
		} else {
			missing = append(missing, id)
		}
	}
	if missing != nil {
		return reason.New(reason.JobUnknown, "heartbeat: client %q holds no job %s any more", req.ClientId, strings.Join(missing, ", "))
	}
	return nil
}

// hearOfPasses takes over what a client's newest heartbeat says of its passes.
func (c *Core) hearOfPasses(req *pecanv1.ClientHeartbeatRequest, client *clientState) {
	for _, pass := range req.Passes {
		job := c.state.jobs[pass.JobId]
		if job == nil {
			continue
		}
		epoch := findEpoch(job, pass.Epoch)
		if epoch == nil || findPass(epoch, req.ClientId) == nil {
			continue
		}
		key := passKey{pass.JobId, pass.Epoch}
		if known := client.passes[key]; known == nil || known.starved != pass.Starved {
			c.dirty = true
		}
		client.passes[key] = &passState{starved: pass.Starved, told: pass, seen: c.now}
	}
	if !req.Opening {
		c.dropForgottenPasses(req, client)
	}
}

// dropForgottenPasses closes passes that a client does not name any more: it gave up opening them before it had the answer. A heartbeat that
// was held up on its way, while the dispatcher was restarted too, may be older than the pass: it cannot have named it.
func (c *Core) dropForgottenPasses(req *pecanv1.ClientHeartbeatRequest, client *clientState) {
	clientID := req.ClientId
	for _, jobID := range c.jobsOf(clientID) {
		job := c.state.jobs[jobID]
		for _, epoch := range slices.Clone(job.Epochs) {
			open := findPass(epoch, clientID)
			if open == nil || req.Number != 0 && req.Number <= open.HeartbeatNumber || c.watched(clientID, jobID, epoch.Epoch) {
				continue
			}
			key := passKey{jobID, epoch.Epoch}
			if pass := client.passes[key]; pass == nil {
				client.passes[key] = &passState{seen: c.now}
			} else if c.now-pass.seen > c.cfg.DeadAfter {
				c.event("closing a pass that its client does not name any more", "job", jobID, "epoch", epoch.Epoch, "client", clientID)
				c.leaveEpoch(job, epoch, clientID, false)
			}
		}
	}
}

func (c *Core) clientGoodbye(req *pecanv1.ClientGoodbyeRequest) error {
	if c.state.clients[req.ClientId] != nil {
		c.dropClient(req.ClientId, "goodbye")
	}
	return nil
}

// expireClients forgets clients that were silent for too long, and takes jobs from clients that hold them no more.
func (c *Core) expireClients() {
	held := map[string][]string{}
	for _, job := range c.state.ordered {
		for _, id := range job.ClientIds {
			held[id] = append(held[id], job.JobId)
		}
	}
	for _, id := range sortedKeys(c.clients) {
		client := c.clients[id]
		limit := client.mayBeSilent(c.cfg.ClientTimeout)
		if c.now-client.lastSeen > limit {
			c.warn("client lost", "client", id, "silent_s", (c.now - client.lastSeen).Seconds())
			c.dropClient(id, "timeout")
			continue
		}
		for _, jobID := range held[id] {
			seen, ok := client.jobs[jobID]
			if !ok {
				client.jobs[jobID] = c.now
			} else if c.now-seen > limit {
				c.leaveJob(c.state.jobs[jobID], id)
			}
		}
	}
}

func (c *Core) jobsOf(clientID string) []string {
	var ids []string
	for _, job := range c.state.ordered {
		if slices.Contains(job.ClientIds, clientID) {
			ids = append(ids, job.JobId)
		}
	}
	return ids
}

func (c *Core) dropClient(id, why string) {
	for _, jobID := range c.jobsOf(id) {
		c.leaveJob(c.state.jobs[jobID], id)
	}
	c.emit(&pecanv1.Record{Kind: &pecanv1.Record_ClientLeft{ClientLeft: &pecanv1.ClientLeft{ClientId: id, Why: why}}})
	delete(c.clients, id)
	c.event("client left", "client", id, "why", why)
}

// leaveJob takes a client out of a job and of its epochs. A private job goes with its client.
func (c *Core) leaveJob(job *pecanv1.StoredJob, clientID string) {
	for _, epoch := range slices.Clone(job.Epochs) {
		if findPass(epoch, clientID) != nil {
			c.leaveEpoch(job, epoch, clientID, false)
		}
	}
	c.endWatches(func(w *watchState) bool { return w.client == clientID && w.job == job.JobId },
		reason.New(reason.ClientUnknown, "watch epoch: client %q does not hold job %q any more", clientID, job.JobId))
	c.emit(&pecanv1.Record{Kind: &pecanv1.Record_JobLeft{JobLeft: &pecanv1.JobLeft{JobId: job.JobId, ClientId: clientID}}})
	if client := c.clients[clientID]; client != nil {
		delete(client.jobs, job.JobId)
	}
	if len(job.ClientIds) > 0 {
		return
	}
	if private(job) {
		c.removeJob(job, "its client left")
	} else {
		c.idleJobs[job.JobId] = c.now
	}
}

func (c *Core) removeJob(job *pecanv1.StoredJob, why string) {
	for _, epoch := range slices.Clone(job.Epochs) {
		c.endEpoch(job, epoch)
	}
	c.emit(&pecanv1.Record{Kind: &pecanv1.Record_JobRemoved{JobRemoved: &pecanv1.JobRemoved{JobId: job.JobId}}})
	delete(c.idleJobs, job.JobId)
	delete(c.profiles, job.JobId)
	c.event("job removed", "job", job.JobId, "name", job.Name, "why", why)
}

// expireJobs removes named jobs that nobody came back to.
func (c *Core) expireJobs() {
	for _, job := range slices.Clone(c.state.ordered) {
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

// expireDatasets forgets datasets without jobs, when the configuration says so.
func (c *Core) expireDatasets() {
	if c.cfg.DatasetTimeout == 0 {
		return
	}
	used := map[string]bool{}
	for _, job := range c.state.ordered {
		used[job.DatasetId] = true
	}
	for _, id := range sortedKeys(c.state.datasets) {
		if used[id] {
			delete(c.idleDatasets, id)
			continue
		}
		since, ok := c.idleDatasets[id]
		if !ok {
			c.idleDatasets[id] = c.now
			continue
		}
		if c.now-since <= c.cfg.DatasetTimeout {
			continue
		}
		fingerprint := c.state.datasets[id].Fingerprint
		c.emit(&pecanv1.Record{Kind: &pecanv1.Record_DatasetRemoved{DatasetRemoved: &pecanv1.DatasetRemoved{DatasetId: id}}})
		delete(c.idleDatasets, id)
		c.event("dataset removed", "dataset", id, "why", "no job used it")
		if !c.state.UsesGraph(fingerprint) {
			c.effect(ForgetGraph{fingerprint})
		}
	}
}
