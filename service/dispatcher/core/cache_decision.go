package core

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/pecan-ml/pecan/policies/autocache"
	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/dispatcher/core/durable"
	"github.com/pecan-ml/pecan/service/dispatcher/core/jobmetrics"
	"github.com/pecan-ml/pecan/service/dispatcher/core/measure"
	"github.com/pecan-ml/pecan/service/dispatcher/core/placement"
	"github.com/pecan-ml/pecan/service/graph/split"
)

// A job without pecan.cache() caches at one of its candidates, or nowhere. The caller decides, because the decision needs
// prices: it answers a CachingRequest by CachingDecided. The core asks once in a job's first epoch, when enough is measured.
// Before each later epoch the caller asks CacheToDecide. An open epoch keeps its cached step, which EpochOpened or the first
// decision records. So a dispatcher that restarts continues with the same step.

const (
	// decisionElements is the least number of measured elements of the busiest step before a decision. decisionCPU is the
	// least number of measured CPU seconds of all steps.
	decisionElements = 300
	decisionCPU      = 0.05
	// decisionPeriod is the time between two looks at a job.
	decisionPeriod = 500 * time.Millisecond
)

// cachingState is the volatile state of a job's decision.
type cachingState struct {
	// asked is the number of the open request; 0 without one. due is the time of the next look. waitsFor says what the last
	// request lacked.
	asked    uint64
	due      time.Duration
	waitsFor string
	// predicted is the answer for pecan.cache(); nil before it, and for other jobs.
	predicted *pecanv1.CacheDecision
	// epochs are those that this process has measured in the job, the newest last. tries has how many epochs began as tries of a
	// node.
	epochs []*pecanv1.MeasuredEpoch
	tries  map[string]int
}

// cachedStep returns the step that is cached in an epoch, by pecan.cache() or by a decision; nil if none is.
func cachedStep(epoch *durable.Epoch) *pecanv1.CachePlan {
	return stepNamed(epoch.Job, epoch.CachedStep)
}

func stepNamed(job *durable.Job, node string) *pecanv1.CachePlan {
	if job.Plan.GetCache() != nil {
		return job.Plan.Cache
	}
	return durable.CandidateStep(job.Plan, node)
}

// decidesCache reports whether the cached step of a job is decided by measurements.
func decidesCache(job *durable.Job) bool {
	return job.Error == nil && job.Plan.GetCache() == nil && len(job.Plan.CacheSteps()) > 0
}

// comparesCache reports whether a job has pecan.cache(), and the quotas may have to compare its cache with others.
func (c *Core) comparesCache(job *durable.Job) bool {
	quota, own := c.quotasOf(job)
	return job.Error == nil && job.Plan.GetCache() != nil && (quota > 0 || own > 0)
}

// quotasOf returns the bounds of the cluster and of a job's tenant in bytes; 0: no bound.
func (c *Core) quotasOf(job *durable.Job) (quota, own int64) {
	return max(c.cfg.CacheQuota, 0), max(int64(c.cfg.Tenants[job.Options.EffectiveTenant()].CacheBytes), 0)
}

// stepCaching asks for the first decision of each job that reads, when enough is measured.
func (c *Core) stepCaching() {
	for _, job := range c.state.Jobs() {
		if job.CacheDecision != nil || !placement.IsRead(job) || !decidesCache(job) && !c.comparesCache(job) {
			continue
		}
		s := c.cachingOf(job)
		if s.asked != 0 || s.predicted != nil || c.now < s.due {
			continue
		}
		s.due = c.now + decisionPeriod
		if facts, wait := c.cachingFacts(job); wait == "" {
			c.versions++
			s.asked = c.versions
			c.effect(CachingRequest{Number: s.asked, JobID: job.JobId, Facts: facts})
		}
	}
}

// decisionWaitsFor says what the first decision on a job waits for, if a cache is possible.
func (c *Core) decisionWaitsFor(job *durable.Job) string {
	if c.candidatesProblem(job) != "" {
		return ""
	}
	_, wait := c.cachingFacts(job)
	if s := c.caches.decisions[job.JobId]; wait == "" && s != nil {
		return s.waitsFor
	}
	return wait
}

// CacheToDecide asks which step is cached in the epoch that a request is about to open. It returns nil if there is nothing to
// decide, or if too little is known.
func (c *Core) CacheToDecide(req *pecanv1.OpenEpochRequest) *CachingRequest {
	job := c.state.Job(req.GetJobId())
	if job == nil || !decidesCache(job) {
		return nil
	}
	facts, wait := c.cachingFacts(job)
	if wait != "" {
		return nil
	}
	return &CachingRequest{JobID: job.JobId, Facts: facts}
}

// cachingFacts returns what a decision on a job needs, or what it waits for.
func (c *Core) cachingFacts(job *durable.Job) (facts measure.Caching, waitsFor string) {
	if why := c.candidatesProblem(job); why != "" {
		return facts, why
	}
	fingerprint := c.state.Dataset(job.DatasetId).GetFingerprint()
	kept := c.state.Profile(fingerprint)
	totals := c.profiles[job.JobId].Totals()
	nodes := jobmetrics.Valid(totals.Computed())
	cpuWait := totals.CPUWaitShare(nodes)
	if elements, cpu := jobmetrics.Busiest(nodes); !c.cfg.DecideUnmeasured && (elements < decisionElements || cpu < decisionCPU) {
		cpuWait = kept.GetCpuWait()
		if nodes = jobmetrics.Valid(kept.GetNodes()); len(nodes) == 0 {
			return facts, fmt.Sprintf("measured %d of %d elements of the busiest step and %.2g of %.2g s of CPU", min(elements, decisionElements), decisionElements, min(cpu, decisionCPU), decisionCPU)
		}
	}
	facts = measure.Caching{
		Plan: job.Plan, Options: job.Options, Nodes: nodes, CPUWait: cpuWait, Elements: c.elementsOf(job, kept), Quota: c.cacheRoom(job), Begun: c.state.EpochsBegun(job),
		UnixS: c.unix(), KeptHours: c.cfg.CacheTTL.Hours(), Current: job.CacheDecision.GetNode(),
		Trainers: c.placements.Trainers(job), Source: c.sources[job.JobId].Uses(), Reads: c.reads.Uses(), Writes: c.writes.Uses(),
	}
	// The state never changes the jobs of a history.
	facts.Past = c.state.PastJobs(job)
	for _, id := range slices.Sorted(maps.Keys(c.workers)) {
		if worker := c.workers[id]; c.usable(worker) && c.placements.Serves(id, job) {
			local := worker.kind == "local"
			if local {
				facts.Local++
			} else {
				facts.Remote++
			}
			facts.Workers = append(facts.Workers, measure.StoreUser{Local: local, Cores: int(worker.cores), Rates: worker.store})
		}
	}
	if len(facts.Workers) == 0 {
		return facts, "no worker can serve the job"
	}
	facts.Steps, facts.Ordered = c.cachedFacts(job, nil), c.orderedFacts(job)
	if facts.Ordered == nil {
		facts.Epochs, facts.JobID = c.measuredEpochs(job, facts.Elements, autocache.Newest), job.JobId
		facts.Tries, facts.Tried = maps.Clone(c.cachingOf(job).tries), job.CacheDecision.GetTried()
	}
	return facts, c.waitsForOrder(job, facts.Steps)
}

// cachedFacts returns the steps of a job that can be cached, with what is stored of them in an order.
func (c *Core) cachedFacts(job *durable.Job, order []string) (steps []measure.CachedStep) {
	candidates := job.Plan.GetCacheCandidates()
	if forced := job.Plan.GetCache(); forced != nil {
		candidates = []*pecanv1.CacheCandidate{{Node: forced.Node, Plan: forced}}
	}
	for _, candidate := range candidates {
		if candidate.Plan == nil {
			continue
		}
		step := measure.CachedStep{Candidate: candidate, Past: c.otherReaders(job, c.cacheKey(job, candidate.Plan))}
		if stored, _ := candidate.Plan.InOrder(order); stored == nil {
			step.Problem = "the decided order moves steps across it"
		} else {
			key := c.cacheKey(job, stored)
			step.Problem = c.caches.unwanted[key]
			if cache := c.state.Cache(key); cache != nil {
				size := c.state.CacheSize(key)
				step.Stored, step.Bytes, step.Held = float64(len(cache.Segments))/float64(max(cache.Parts, 1)), uint64(size.Bytes), size.Elements
			}
		}
		steps = append(steps, step)
	}
	return steps
}

// elementsOf returns how many elements an epoch of a job has. The plan may say it, or an earlier epoch may have had them.
// Otherwise the ended streams give an estimate. It returns 0 if nothing is known.
func (c *Core) elementsOf(job *durable.Job, kept *pecanv1.StoredProfile) uint64 {
	if n := job.Plan.GetCardinality(); n > 0 {
		return uint64(n)
	}
	for _, closed := range slices.Backward(job.Closed) {
		if closed.Delivered && closed.Elements > 0 {
			return closed.Elements
		}
	}
	if kept.GetEpochElements() > 0 {
		return kept.EpochElements
	}
	for _, epoch := range job.Epochs {
		if done := epoch.DeliveredStreams(); done > 0 {
			return epoch.Elements() * uint64(epoch.Total()) / uint64(done)
		}
	}
	return 0
}

// cacheRoom returns the bytes that the quotas leave for caches of a job; negative without a quota. Caches that are not
// pinned give way if their benefit is smaller.
func (c *Core) cacheRoom(job *durable.Job) int64 {
	tenant := job.Options.EffectiveTenant()
	quota, own := c.quotasOf(job)
	if quota == 0 && own == 0 {
		return -1
	}
	jobs, mine := c.cacheJobs(), map[string]bool{}
	for _, step := range cachedSteps(job) {
		mine[c.cacheKey(job, step)] = true
	}
	pinned, ofTenant := int64(0), int64(0)
	for _, key := range c.state.CacheKeys() {
		if cache := c.state.Cache(key); !mine[key] && (cache.Pinned || reads(jobs[key])) {
			bytes := c.state.CacheSize(key).Bytes
			if pinned += bytes; cache.Tenant == tenant {
				ofTenant += bytes
			}
		}
	}
	room := int64(math.MaxInt64)
	if quota > 0 {
		room = min(room, quota-pinned)
	}
	if own > 0 {
		room = min(room, own-ofTenant)
	}
	return max(room, 0)
}

// cachingDecided records a decision that changes something. The first decision also holds for the open epochs: their
// streams without a lease use it. A decision that repeats the last one is recorded when the job has begun twice as many
// epochs.
func (c *Core) cachingDecided(in CachingDecided) {
	if s := c.caches.decisions[in.JobID]; s != nil && s.asked == in.Number {
		s.asked, s.waitsFor = 0, in.WaitsFor
	}
	job := c.state.Job(in.JobID)
	switch {
	case job == nil || in.Decision == nil:
		return
	case job.Plan.GetCache() != nil:
		c.predicted(job, in.Decision)
		return
	case !decidesCache(job) || in.Decision.Node != "" && durable.CandidateStep(job.Plan, in.Decision.Node) == nil:
		return
	case len(in.Decision.Order) > 0 && !c.mayKeepIn(job, in.Decision):
		return
	}
	before, decision := job.CacheDecision, proto.CloneOf(in.Decision)
	decision.Epoch = job.NextEpoch
	decided := &pecanv1.CacheDecided{JobId: job.JobId, Decision: decision, AtS: c.unix()}
	switch {
	case before == nil:
		for _, epoch := range job.Epochs {
			decided.OpenEpochs = append(decided.OpenEpochs, epoch.Epoch)
			decision.Epoch = min(decision.Epoch, epoch.Epoch)
		}
	case before.Node == decision.Node && before.Tried == decision.Tried && slices.Equal(before.Order, decision.Order) && decision.Epoch <= 2*before.Epoch+1:
		return
	}
	kept := c.state.Profile(c.state.Dataset(job.DatasetId).GetFingerprint())
	decided.Epochs = c.measuredEpochs(job, c.elementsOf(job, kept), autocache.Block)
	// Figures of the user or of another dispatcher may be so large that what follows from them is infinite.
	if err := c.state.CheckCacheDecided(decided); err != nil {
		s := c.cachingOf(job)
		s.waitsFor, s.due = err.Error(), c.now+time.Minute
		c.warn("a decision on a cache is left out", "job", job.JobId, "error", err)
		return
	}
	c.emit(&pecanv1.Record{Kind: &pecanv1.Record_CacheDecided{CacheDecided: decided}})
	c.event("cache decided", "job", job.JobId, "epoch", decision.Epoch, "step", cmp.Or(decision.Node, "none"), "why", decision.Why)
}

// keptBelow returns a number of parts. The newest decision stores the parts of the step below that number.
func keptBelow(job *durable.Job, step *pecanv1.CachePlan) uint32 {
	all := split.AllParts(job.Plan, step)
	for _, candidate := range job.CacheDecision.GetCandidates() {
		if candidate.Node == step.Node && candidate.Share > 0 {
			return uint32(min(math.Ceil(candidate.Share*float64(all)), float64(all)))
		}
	}
	return all
}

// decisionLine describes the newest decision for the trainer's log; empty before the first one.
func decisionLine(job *durable.Job) string {
	d := job.CacheDecision
	if d == nil {
		return ""
	}
	what := "nothing is cached"
	if d.Node != "" {
		what = "the elements of " + d.Node + " are cached"
	}
	return fmt.Sprintf("from epoch %d on, %s: %s", d.Epoch, what, d.Why)
}
