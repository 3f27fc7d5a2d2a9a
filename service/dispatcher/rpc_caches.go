package dispatcher

import (
	"context"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
)

// Caches implements the service.
func (d *Dispatcher) Caches(_ context.Context, req *pecanv1.CachesRequest) (*pecanv1.CachesResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	answer, err := d.core.Caches(req)
	if err != nil {
		return nil, err
	}
	// Parts of the answer belong to the core's state, so the answer is copied before the core continues.
	return clone(answer), nil
}

// ChangeCache implements the service.
func (d *Dispatcher) ChangeCache(ctx context.Context, req *pecanv1.ChangeCacheRequest) (*pecanv1.ChangeCacheResponse, error) {
	if err := d.check.Required("key", req.Key); err != nil {
		return nil, err
	}
	return ask[*pecanv1.ChangeCacheResponse](ctx, d, req)
}
