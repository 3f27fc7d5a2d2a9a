package dispatcher

import (
	"context"
	"encoding/binary"
	"io"
	"maps"
	"slices"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/proto/reason"
	"github.com/pecan-ml/pecan/service/dispatcher/core"
	"github.com/pecan-ml/pecan/service/dispatcher/validate"
	"github.com/pecan-ml/pecan/service/graph/split"
)

// CreateJob implements the service. The graph is analysed outside the core, and only if a job is created.
func (d *Dispatcher) CreateJob(ctx context.Context, req *pecanv1.CreateJobRequest) (*pecanv1.CreateJobResponse, error) {
	name, err := d.check.JobName(req.JobName)
	if err != nil {
		return nil, err
	}
	if err := validate.First(
		d.check.Required("request_id", req.RequestId), d.check.Required("client_id", req.ClientId),
		d.check.DatasetID(req.DatasetId), validate.Text("client_host", req.ClientHost), validate.Division(req.Division),
	); err != nil {
		return nil, err
	}
	if req.Options, err = validate.Options(req.Options); err != nil {
		return nil, err
	}
	req.JobName = name
	input := core.CreateJob{Request: req}
	if input.JobID, err = d.randomID("j"); err != nil {
		return nil, err
	}
	if input.Seed, err = d.randomSeed(); err != nil {
		return nil, err
	}
	answer, err := d.submit(ctx, input)
	if err != nil {
		return nil, err
	}
	if needed, ok := answer.(core.PlanNeeded); ok {
		if input.Plan, err = d.plan(needed, req); err != nil {
			return nil, err
		}
		if answer, err = d.submit(ctx, input); err != nil {
			return nil, err
		}
	}
	response, ok := answer.(*pecanv1.CreateJobResponse)
	if !ok {
		return nil, reason.New(reason.Internal, "create job: unexpected answer %T", answer)
	}
	if err := d.checkOrder(ctx, response.JobId); err != nil {
		return nil, err
	}
	response.Durable = d.deps.Store.Dir() != ""
	return response, nil
}

// plan divides a dataset for a job, and checks what the dispatcher relies on.
func (d *Dispatcher) plan(needed core.PlanNeeded, req *pecanv1.CreateJobRequest) (*pecanv1.Plan, error) {
	graph, err := d.deps.Store.Graph(needed.Dataset.Fingerprint)
	if err != nil {
		return nil, d.storeError(err)
	}
	env := split.Env{FileBytes: max(0, req.FileBytes), FileRecords: max(0, req.FileRecords), Profile: needed.Profile, Division: req.Division, Carry: true}
	plan, err := d.deps.Graphs.Plan(graph, req.Options, env)
	if err != nil {
		return nil, err
	}
	if plan, err = d.planForCache(graph, req, env, plan, needed.Caches); err != nil {
		return nil, err
	}
	off := req.Options.Mode == pecanv1.Mode_MODE_OFF
	if n := plan.GetNumStreams(); n < 0 || n > validate.MaxStreams || !off && n == 0 {
		return nil, reason.New(reason.Internal, "create job: a plan with %d streams", n)
	}
	return plan, nil
}

// maxPlansForCache bounds the plans that are made to find a cache.
const maxPlansForCache = 32

// planForCache returns a plan with the number of streams of a complete cache, so that the job can read the cache. It returns
// the given plan if there is no such cache. In mode deterministic, a cache must not change the order.
func (d *Dispatcher) planForCache(graph []byte, req *pecanv1.CreateJobRequest, env split.Env, plan *pecanv1.Plan, caches map[string]int) (*pecanv1.Plan, error) {
	byShare := slices.ContainsFunc(plan.CacheSteps(), func(step *pecanv1.CachePlan) bool { return step.GetParts() == 0 })
	if !byShare || d.readsAny(plan, req.Options, caches) || env.Division != nil || req.Options.Streams > 0 || plan.GetMode() == pecanv1.Mode_MODE_DETERMINISTIC {
		return plan, nil
	}
	tried := map[int]bool{int(plan.GetNumStreams()): true}
	for _, key := range slices.Sorted(maps.Keys(caches)) {
		if env.CacheStreams = caches[key]; tried[env.CacheStreams] || len(tried) > maxPlansForCache {
			continue
		}
		tried[env.CacheStreams] = true
		other, err := d.deps.Graphs.Plan(graph, req.Options, env)
		if err != nil {
			return nil, err
		}
		if d.readsAny(other, req.Options, caches) {
			return other, nil
		}
	}
	return plan, nil
}

// readsAny reports whether a job with a plan can read one of the complete caches.
func (d *Dispatcher) readsAny(plan *pecanv1.Plan, options *pecanv1.JobOptions, caches map[string]int) bool {
	return slices.ContainsFunc(plan.CacheSteps(), func(step *pecanv1.CachePlan) bool {
		_, complete := caches[d.cfg.Core.CacheKey(step, options)]
		return complete
	})
}

func (d *Dispatcher) randomSeed() (uint64, error) {
	var b [8]byte
	if _, err := io.ReadFull(d.deps.Rand, b[:]); err != nil {
		return 0, reason.New(reason.Internal, "draw a seed: %w", err)
	}
	return binary.LittleEndian.Uint64(b[:]), nil
}

// ask submits a request whose answer has type T.
func ask[T any](ctx context.Context, d *Dispatcher, input any) (T, error) {
	var none T
	answer, err := d.submit(ctx, input)
	if err != nil {
		return none, err
	}
	response, ok := answer.(T)
	if !ok {
		return none, reason.New(reason.Internal, "unexpected answer %T", answer)
	}
	return response, nil
}

// ClientHeartbeat implements the service.
func (d *Dispatcher) ClientHeartbeat(ctx context.Context, req *pecanv1.ClientHeartbeatRequest) (*pecanv1.ClientHeartbeatResponse, error) {
	if err := d.check.Required("client_id", req.ClientId); err != nil {
		return nil, err
	}
	if len(req.JobIds) > validate.MaxListed || len(req.Passes) > validate.MaxListed {
		return nil, reason.New(reason.BadArgument, "heartbeat: %d jobs and %d passes; the limit of each is %d", len(req.JobIds), len(req.Passes), validate.MaxListed)
	}
	for _, pass := range req.Passes {
		pass.WaitedS = validate.CleanSeconds(pass.WaitedS)
	}
	validate.CleanConsumer(req)
	if why, _ := d.diskGate.state(); why != nil {
		// Time stands still while the disk is full.
		return &pecanv1.ClientHeartbeatResponse{}, nil
	}
	return ask[*pecanv1.ClientHeartbeatResponse](ctx, d, req)
}

// ClientGoodbye implements the service.
func (d *Dispatcher) ClientGoodbye(ctx context.Context, req *pecanv1.ClientGoodbyeRequest) (*pecanv1.ClientGoodbyeResponse, error) {
	if err := d.check.Required("client_id", req.ClientId); err != nil {
		return nil, err
	}
	return ask[*pecanv1.ClientGoodbyeResponse](ctx, d, req)
}
