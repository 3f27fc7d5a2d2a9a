package worker

import (
	"context"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
)

// streamAt is which stream a graph is for.
type streamAt struct {
	stream      uint32
	epoch, seed uint64
	// source is the handle that the graph's PecanPull op carries; -1 when there is none.
	source int64
}

// streamGraphs are the serialised graphs of one stream. b is empty unless the plan joins two graphs by PecanPull.
type streamGraphs struct{ a, b []byte }

// planner gives the graphs of streams.
type planner interface {
	instantiate(ctx context.Context, fingerprint string, plan *pecanv1.Plan, at streamAt) (*streamGraphs, error)
}
