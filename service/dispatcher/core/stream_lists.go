package core

import (
	"fmt"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/proto/reason"
)

// finishStreams finishes each stream of a list.
func (c *Core) finishStreams(req *pecanv1.FinishStreamsRequest) (*pecanv1.FinishStreamsResponse, error) {
	if _, err := c.member("finish streams", req.ClientId, req.JobId); err != nil {
		return nil, err
	}
	response := &pecanv1.FinishStreamsResponse{}
	for _, one := range req.Streams {
		id := &pecanv1.StreamId{JobId: req.JobId, Epoch: req.Epoch, Stream: one.GetStream()}
		response.Refused = appendRefused(response.Refused, id.Stream, c.finishStream(req.ClientId, id, one))
	}
	return response, nil
}

// releaseStreams releases each stream of a list.
func (c *Core) releaseStreams(req *pecanv1.ReleaseStreamsRequest) (*pecanv1.ReleaseStreamsResponse, error) {
	if _, err := c.member("release streams", req.ClientId, req.JobId); err != nil {
		return nil, err
	}
	response := &pecanv1.ReleaseStreamsResponse{}
	for _, one := range req.Streams {
		id := &pecanv1.StreamId{JobId: req.JobId, Epoch: req.Epoch, Stream: one.GetStream()}
		response.Refused = appendRefused(response.Refused, id.Stream, c.releaseStream(req.ClientId, id, one))
	}
	return response, nil
}

func appendRefused(list []*pecanv1.RefusedStream, stream uint32, err error) []*pecanv1.RefusedStream {
	if err == nil {
		return list
	}
	return append(list, &pecanv1.RefusedStream{Stream: stream, Error: reason.From(err).Detail()})
}

// streamsStarted notes that a worker has opened streams.
func (c *Core) streamsStarted(workerID string, r *pecanv1.StreamsStarted) error {
	streams, leases, err := streamsAndLeases(r.GetStreams(), r.GetLeases())
	if err != nil {
		return reason.New(reason.BadArgument, "worker %s: streams started: %w", workerID, err)
	}
	for i, number := range streams {
		id := &pecanv1.StreamId{JobId: r.JobId, Epoch: r.Epoch, Stream: number}
		if _, _, stream := c.leased(workerID, id, leases[i]); stream != nil {
			c.noteOpened(id.Key(), stream)
		}
	}
	return nil
}

// streamsEnded notes that a worker produced the last elements of streams.
func (c *Core) streamsEnded(workerID string, r *pecanv1.StreamsEnded) error {
	streams, leases, err := streamsAndLeases(r.GetStreams(), r.GetLeases())
	rows := r.GetRemainderRows()
	if err == nil && (len(r.GetCounts()) != len(streams) || len(rows) > 0 && len(rows) != len(streams)) {
		err = fmt.Errorf("%d streams, %d counts and %d numbers of rows", len(streams), len(r.GetCounts()), len(rows))
	}
	if err != nil {
		return reason.New(reason.BadArgument, "worker %s: streams ended: %w", workerID, err)
	}
	for i, number := range streams {
		id := &pecanv1.StreamId{JobId: r.JobId, Epoch: r.Epoch, Stream: number}
		job, epoch, stream := c.leased(workerID, id, leases[i])
		if stream == nil {
			c.sendStop(workerID, id.Key(), leases[i])
			continue
		}
		kept := uint64(0)
		if len(rows) > 0 {
			kept = rows[i]
		}
		c.streamProduced(job, epoch, stream, r.Counts[i], kept)
	}
	return nil
}

func streamsAndLeases(streamList, leaseList []int64) (streams []uint32, leases []uint64, err error) {
	if streams, err = pecanv1.Numbers[uint32](streamList); err != nil {
		return nil, nil, err
	}
	if leases, err = pecanv1.Numbers[uint64](leaseList); err != nil {
		return nil, nil, err
	}
	if len(streams) != len(leases) {
		return nil, nil, fmt.Errorf("%d streams and %d leases", len(streams), len(leases))
	}
	return streams, leases, nil
}
