package dispatcher

import (
	"context"
	"encoding/binary"
	"io"

	"google.golang.org/grpc"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/proto/reason"
	"github.com/pecan-ml/pecan/service/dispatcher/core"
)

// CreateJob implements the service. The graph is analysed outside of the core, and only when a job is really created.
func (d *Dispatcher) CreateJob(ctx context.Context, req *pecanv1.CreateJobRequest) (*pecanv1.CreateJobResponse, error) {
	name, err := d.check.name(req.JobName)
	if err != nil {
		return nil, err
	}
	if err := first(
		d.check.required("request_id", req.RequestId), d.check.required("client_id", req.ClientId),
		d.check.dataset(req.DatasetId), checkText("client_host", req.ClientHost),
	); err != nil {
		return nil, err
	}
	if req.Options, err = checkOptions(req.Options); err != nil {
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
		if input.Plan, err = d.plan(needed.Dataset, req.Options); err != nil {
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
	response.Durable = d.deps.Store.Dir() != ""
	return response, nil
}

// plan has a dataset divided for a job, and checks what the rest of the dispatcher relies on.
func (d *Dispatcher) plan(dataset *pecanv1.StoredDataset, options *pecanv1.JobOptions) (*pecanv1.Plan, error) {
	graph, err := d.deps.Store.Graph(dataset.Fingerprint)
	if err != nil {
		return nil, d.storeError(err)
	}
	plan, err := d.deps.Graphs.Plan(graph, options)
	if err != nil {
		return nil, err
	}
	off := options.Mode == pecanv1.Mode_MODE_OFF
	if n := plan.GetNumStreams(); n < 0 || n > maxStreamsLimit || !off && n == 0 {
		return nil, reason.New(reason.Internal, "create job: a plan with %d streams", n)
	}
	return plan, nil
}

func (d *Dispatcher) randomSeed() (uint64, error) {
	var b [8]byte
	if _, err := io.ReadFull(d.deps.Rand, b[:]); err != nil {
		return 0, reason.New(reason.Internal, "draw a seed: %w", err)
	}
	return binary.LittleEndian.Uint64(b[:]), nil
}

// ask submits a request whose answer has the type T.
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

// OpenEpoch implements the service.
func (d *Dispatcher) OpenEpoch(ctx context.Context, req *pecanv1.OpenEpochRequest) (*pecanv1.OpenEpochResponse, error) {
	if err := first(
		d.check.required("request_id", req.RequestId), d.check.required("client_id", req.ClientId), d.check.required("job_id", req.JobId),
	); err != nil {
		return nil, err
	}
	order, err := d.orderNamed(req)
	if err != nil {
		return nil, err
	}
	return ask[*pecanv1.OpenEpochResponse](ctx, d, core.OpenEpochAt{Request: req, Order: order})
}

// AdoptEpoch implements the service.
func (d *Dispatcher) AdoptEpoch(ctx context.Context, req *pecanv1.AdoptEpochRequest) (*pecanv1.AdoptEpochResponse, error) {
	if err := first(d.check.required("client_id", req.ClientId), d.check.required("job_id", req.JobId)); err != nil {
		return nil, err
	}
	return ask[*pecanv1.AdoptEpochResponse](ctx, d, req)
}

// FinishStream implements the service.
func (d *Dispatcher) FinishStream(ctx context.Context, req *pecanv1.FinishStreamRequest) (*pecanv1.FinishStreamResponse, error) {
	if err := first(d.check.required("client_id", req.ClientId), d.check.stream(req.Id)); err != nil {
		return nil, err
	}
	return ask[*pecanv1.FinishStreamResponse](ctx, d, req)
}

// ReleaseStream implements the service.
func (d *Dispatcher) ReleaseStream(ctx context.Context, req *pecanv1.ReleaseStreamRequest) (*pecanv1.ReleaseStreamResponse, error) {
	if err := first(d.check.required("client_id", req.ClientId), d.check.stream(req.Id)); err != nil {
		return nil, err
	}
	return ask[*pecanv1.ReleaseStreamResponse](ctx, d, req)
}

// ReportWorker implements the service.
func (d *Dispatcher) ReportWorker(ctx context.Context, req *pecanv1.ReportWorkerRequest) (*pecanv1.ReportWorkerResponse, error) {
	if err := first(
		d.check.required("client_id", req.ClientId), d.check.stream(req.Id), d.check.required("worker_id", req.WorkerId),
	); err != nil {
		return nil, err
	}
	req.Message = shortText(req.Message)
	return ask[*pecanv1.ReportWorkerResponse](ctx, d, req)
}

// MarkElements implements the service.
func (d *Dispatcher) MarkElements(ctx context.Context, req *pecanv1.MarkElementsRequest) (*pecanv1.MarkElementsResponse, error) {
	if err := first(d.check.required("worker_id", req.WorkerId), d.check.stream(req.Id)); err != nil {
		return nil, err
	}
	req.Files = req.Files[:min(len(req.Files), maxMarkedFiles)]
	for i := range req.Files {
		req.Files[i] = shortText(req.Files[i])
	}
	return ask[*pecanv1.MarkElementsResponse](ctx, d, req)
}

// ReportCrash implements the service.
func (d *Dispatcher) ReportCrash(ctx context.Context, req *pecanv1.ReportCrashRequest) (*pecanv1.ReportCrashResponse, error) {
	if err := first(d.check.required("worker_id", req.WorkerId), d.check.required("cause", req.Cause)); err != nil {
		return nil, err
	}
	req.Cause = shortText(req.Cause)
	return ask[*pecanv1.ReportCrashResponse](ctx, d, req)
}

// maxMarkedFiles bounds the files that an error names.
const maxMarkedFiles = 16

// CloseEpoch implements the service.
func (d *Dispatcher) CloseEpoch(ctx context.Context, req *pecanv1.CloseEpochRequest) (*pecanv1.CloseEpochResponse, error) {
	if err := first(d.check.required("client_id", req.ClientId), d.check.required("job_id", req.JobId)); err != nil {
		return nil, err
	}
	return ask[*pecanv1.CloseEpochResponse](ctx, d, req)
}

// ClientHeartbeat implements the service.
func (d *Dispatcher) ClientHeartbeat(ctx context.Context, req *pecanv1.ClientHeartbeatRequest) (*pecanv1.ClientHeartbeatResponse, error) {
	if err := d.check.required("client_id", req.ClientId); err != nil {
		return nil, err
	}
	if len(req.JobIds) > maxListed || len(req.Passes) > maxListed {
		return nil, reason.New(reason.BadArgument, "heartbeat: %d jobs and %d passes, at most %d of each are taken", len(req.JobIds), len(req.Passes), maxListed)
	}
	for _, pass := range req.Passes {
		pass.WaitedS = cleanSeconds(pass.WaitedS)
	}
	if why, _ := d.gate.look(); why != nil {
		// Nobody's time passes.
		return &pecanv1.ClientHeartbeatResponse{}, nil
	}
	return ask[*pecanv1.ClientHeartbeatResponse](ctx, d, req)
}

// ClientGoodbye implements the service.
func (d *Dispatcher) ClientGoodbye(ctx context.Context, req *pecanv1.ClientGoodbyeRequest) (*pecanv1.ClientGoodbyeResponse, error) {
	if err := d.check.required("client_id", req.ClientId); err != nil {
		return nil, err
	}
	return ask[*pecanv1.ClientGoodbyeResponse](ctx, d, req)
}

// Status implements the service.
func (d *Dispatcher) Status(context.Context, *pecanv1.StatusRequest) (*pecanv1.StatusResponse, error) {
	return d.status(), nil
}

func (d *Dispatcher) status() *pecanv1.StatusResponse {
	now := d.deps.Clock.Now()
	d.mu.Lock()
	status := d.core.Status(d.gate.time(now))
	// Parts of the answer belong to the core's state: it is written out before the core goes on.
	status = clone(status)
	d.mu.Unlock()
	status.Version, status.WorkDir, status.UptimeS = d.cfg.Version, d.deps.Store.Dir(), (now - d.started).Seconds()
	return status
}

// WatchEpoch implements the service.
func (d *Dispatcher) WatchEpoch(req *pecanv1.WatchEpochRequest, stream grpc.ServerStreamingServer[pecanv1.EpochUpdate]) error {
	if err := first(d.check.required("client_id", req.ClientId), d.check.required("job_id", req.JobId)); err != nil {
		return err
	}
	w := newWatcher()
	d.outMu.Lock()
	d.nextID++
	id := core.WatchID(d.nextID)
	d.watches[id] = w
	d.outMu.Unlock()
	defer func() {
		d.outMu.Lock()
		delete(d.watches, id)
		d.outMu.Unlock()
		d.decide(core.Unwatch{ID: id})
	}()
	if _, err := d.submit(stream.Context(), core.Watch{ID: id, Request: req}); err != nil {
		return err
	}
	for {
		select {
		case <-w.wake:
		case <-stream.Context().Done():
			return reason.From(stream.Context().Err())
		case <-d.stopping:
			return d.stopError()
		}
		update, ended, err := w.take()
		if update != nil {
			if err := stream.Send(update); err != nil {
				return err
			}
		}
		if ended {
			return err
		}
	}
}
