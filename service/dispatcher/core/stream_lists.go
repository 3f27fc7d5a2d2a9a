package core

import (
	"fmt"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/proto/reason"
)

// streamsStarted notes that a worker has opened streams.
func (c *Core) streamsStarted(workerID string, r *pecanv1.StreamsStarted) error {
	streams, leases, err := streamsAndLeases(r.GetStreams(), r.GetLeases())
	if err != nil {
		return reason.New(reason.BadArgument, "worker %s: streams started: %w", workerID, err)
	}
	for i, number := range streams {
		id := &pecanv1.StreamId{JobId: r.JobId, Epoch: r.Epoch, Stream: number}
		if _, _, stream := c.leased(workerID, id, leases[i]); stream != nil {
			c.noteOpened(id.Key(), stream, c.volatileStream(id.Key()))
		}
	}
	return nil
}

// streamsEnded notes that a worker produced the last elements of streams.
func (c *Core) streamsEnded(workerID string, r *pecanv1.StreamsEnded) error {
	streams, leases, err := streamsAndLeases(r.GetStreams(), r.GetLeases())
	rows := r.GetRemainderRows()
	if err == nil && (len(r.GetCounts()) != len(streams) || len(rows) > 0 && len(rows) != len(streams)) {
		err = fmt.Errorf("the report has %d streams, but %d counts and %d numbers of rows", len(streams), len(r.GetCounts()), len(rows))
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

// streamLoads notes how far a worker has come with streams.
func (c *Core) streamLoads(workerID string, r *pecanv1.StreamLoads) error {
	streams, leases, err := streamsAndLeases(r.GetStreams(), r.GetLeases())
	if err == nil {
		err = r.Check()
	}
	if err != nil {
		return reason.New(reason.BadArgument, "worker %s: heartbeat: %w", workerID, err)
	}
	job, epoch, err := c.state.Epoch(r.GetJobId(), r.GetEpoch())
	for i, number := range streams {
		key := pecanv1.StreamKey{Job: r.GetJobId(), Epoch: r.GetEpoch(), Stream: number}
		var stream *pecanv1.StoredStream
		if err == nil {
			stream = leasedIn(epoch, workerID, number, leases[i])
		}
		if stream == nil {
			c.sendStop(workerID, key, leases[i])
			continue
		}
		volatileStream := c.noteProgress(key, stream, progress{produced: r.Produced[i], acked: r.Acked[i], cleanBelow: r.CleanBelow[i], opened: r.Opened(i)})
		drained, unread := r.Drained(i), r.Unread(i)
		if volatileStream.unread = drained && unread; drained && (unread || !stream.Produced || volatileStream.acked < stream.Count) {
			// If a produced stream was read to its end, its reader's report is under way, and the stream stays.
			c.stopRun(job, workerID, key, stream.Lease)
			c.loseLease(key, stream, pecanv1.LeaseLost_MOVED, "worker "+workerID+" is about to leave")
		}
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
		return nil, nil, fmt.Errorf("the list has %d streams, but %d leases", len(streams), len(leases))
	}
	return streams, leases, nil
}
