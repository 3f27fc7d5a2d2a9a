package dispatcher

import (
	"context"
	"time"

	"google.golang.org/grpc"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/proto/reason"
	"github.com/pecan-ml/pecan/service/dispatcher/core"
	"github.com/pecan-ml/pecan/service/dispatcher/validate"
)

// OpenEpoch implements the service.
func (d *Dispatcher) OpenEpoch(ctx context.Context, req *pecanv1.OpenEpochRequest) (*pecanv1.OpenEpochResponse, error) {
	if err := validate.First(
		d.check.Required("request_id", req.RequestId), d.check.Required("client_id", req.ClientId), d.check.Required("job_id", req.JobId),
	); err != nil {
		return nil, err
	}
	order, err := d.orderOfPosition(req)
	if err != nil {
		return nil, err
	}
	if err := d.chooseCacheFor(ctx, req); err != nil {
		return nil, err
	}
	return ask[*pecanv1.OpenEpochResponse](ctx, d, core.OpenEpochAt{Request: req, Order: order})
}

// AdoptEpoch implements the service.
func (d *Dispatcher) AdoptEpoch(ctx context.Context, req *pecanv1.AdoptEpochRequest) (*pecanv1.AdoptEpochResponse, error) {
	if err := validate.First(d.check.Required("client_id", req.ClientId), d.check.Required("job_id", req.JobId)); err != nil {
		return nil, err
	}
	return ask[*pecanv1.AdoptEpochResponse](ctx, d, req)
}

// WatchEpoch implements the service.
func (d *Dispatcher) WatchEpoch(req *pecanv1.WatchEpochRequest, stream grpc.ServerStreamingServer[pecanv1.EpochUpdate]) error {
	if err := validate.First(d.check.Required("client_id", req.ClientId), d.check.Required("job_id", req.JobId)); err != nil {
		return err
	}
	w := newUpdateQueue()
	id := connect(d, d.watches, w)
	defer func() {
		disconnect(d, d.watches, id)
		d.decide(core.Unwatch{ID: id})
	}()
	if _, err := d.submit(stream.Context(), core.Watch{ID: id, Request: req}); err != nil {
		return err
	}
	var sent time.Time
	for {
		select {
		case <-w.wake:
		case <-stream.Context().Done():
			return reason.From(stream.Context().Err())
		case <-d.stopping:
			return d.stopError()
		}
		if pause := w.pause() - time.Since(sent); pause > 0 {
			// Differences that come meanwhile are merged.
			select {
			case <-time.After(pause):
			case <-stream.Context().Done():
				return reason.From(stream.Context().Err())
			}
		}
		updates, ended, err := w.take()
		for _, update := range updates {
			if err := stream.Send(update); err != nil {
				return err
			}
		}
		if ended {
			return err
		}
		sent = time.Now()
	}
}

// CloseEpoch implements the service.
func (d *Dispatcher) CloseEpoch(ctx context.Context, req *pecanv1.CloseEpochRequest) (*pecanv1.CloseEpochResponse, error) {
	if err := validate.First(d.check.Required("client_id", req.ClientId), d.check.Required("job_id", req.JobId)); err != nil {
		return nil, err
	}
	return ask[*pecanv1.CloseEpochResponse](ctx, d, req)
}
