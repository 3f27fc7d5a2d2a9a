package dispatcher

import (
	"context"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/proto/reason"
	"github.com/pecan-ml/pecan/service/dispatcher/validate"
)

// maxListedStreams bounds the streams of one FinishStreams or ReleaseStreams.
const maxListedStreams = 4096

func (d *Dispatcher) checkStreams(clientID, jobID string, streams int) error {
	if streams > maxListedStreams {
		return reason.New(reason.BadArgument, "%d streams in one call; the limit is %d", streams, maxListedStreams)
	}
	return validate.First(d.check.Required("client_id", clientID), d.check.Required("job_id", jobID))
}

// FinishStreams implements the service.
func (d *Dispatcher) FinishStreams(ctx context.Context, req *pecanv1.FinishStreamsRequest) (*pecanv1.FinishStreamsResponse, error) {
	if err := d.checkStreams(req.ClientId, req.JobId, len(req.Streams)); err != nil {
		return nil, err
	}
	return ask[*pecanv1.FinishStreamsResponse](ctx, d, req)
}

// ReleaseStreams implements the service.
func (d *Dispatcher) ReleaseStreams(ctx context.Context, req *pecanv1.ReleaseStreamsRequest) (*pecanv1.ReleaseStreamsResponse, error) {
	if err := d.checkStreams(req.ClientId, req.JobId, len(req.Streams)); err != nil {
		return nil, err
	}
	return ask[*pecanv1.ReleaseStreamsResponse](ctx, d, req)
}

// ReportWorker implements the service.
func (d *Dispatcher) ReportWorker(ctx context.Context, req *pecanv1.ReportWorkerRequest) (*pecanv1.ReportWorkerResponse, error) {
	if err := validate.First(
		d.check.Required("client_id", req.ClientId), d.check.Stream(req.Id), d.check.Required("worker_id", req.WorkerId),
	); err != nil {
		return nil, err
	}
	req.Message = validate.Shorten(req.Message)
	return ask[*pecanv1.ReportWorkerResponse](ctx, d, req)
}

// maxMarkedFiles bounds the files that an error names.
const maxMarkedFiles = 16

// MarkElements implements the service.
func (d *Dispatcher) MarkElements(ctx context.Context, req *pecanv1.MarkElementsRequest) (*pecanv1.MarkElementsResponse, error) {
	if err := validate.First(d.check.Required("worker_id", req.WorkerId), d.check.Stream(req.Id)); err != nil {
		return nil, err
	}
	req.Files = req.Files[:min(len(req.Files), maxMarkedFiles)]
	for i := range req.Files {
		req.Files[i] = validate.Shorten(req.Files[i])
	}
	return ask[*pecanv1.MarkElementsResponse](ctx, d, req)
}

// ReportCrash implements the service.
func (d *Dispatcher) ReportCrash(ctx context.Context, req *pecanv1.ReportCrashRequest) (*pecanv1.ReportCrashResponse, error) {
	if err := validate.First(d.check.Required("worker_id", req.WorkerId), d.check.Required("cause", req.Cause)); err != nil {
		return nil, err
	}
	req.Cause = validate.Shorten(req.Cause)
	return ask[*pecanv1.ReportCrashResponse](ctx, d, req)
}
