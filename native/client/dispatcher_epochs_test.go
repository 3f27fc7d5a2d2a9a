package client

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/proto/reason"
)

// finishedReport is the end of a stream as a client reported it.
type finishedReport struct {
	*pecanv1.FinishedStream
	epoch uint64
}

// releasedReport is a stream that a client released.
type releasedReport struct {
	*pecanv1.ReleasedStream
	epoch uint64
}

// named are the workers that numberOf has numbered, from 1.
var named struct {
	mu      sync.Mutex
	workers []*pecanv1.WorkerAddress
	numbers map[string]uint32
}

// numberOf returns the number of a worker's address, in this process.
func numberOf(worker *pecanv1.WorkerAddress) uint32 {
	named.mu.Lock()
	defer named.mu.Unlock()
	key := worker.String()
	if named.numbers[key] == 0 {
		if named.numbers == nil {
			named.numbers = map[string]uint32{}
		}
		named.workers = append(named.workers, worker)
		named.numbers[key] = uint32(len(named.workers))
	}
	return named.numbers[key]
}

// nameWorkers makes an update a full one that names its workers.
func nameWorkers(u *pecanv1.EpochUpdate) {
	named.mu.Lock()
	defer named.mu.Unlock()
	u.Full = true
	numbers := map[uint32]uint32{}
	for _, one := range u.Streams {
		if one.WorkerNumber == 0 {
			continue
		}
		if numbers[one.WorkerNumber] == 0 {
			u.Workers = append(u.Workers, named.workers[one.WorkerNumber-1])
			numbers[one.WorkerNumber] = uint32(len(u.Workers))
		}
		one.WorkerNumber = numbers[one.WorkerNumber]
	}
}

func (d *testDispatcher) OpenEpoch(ctx context.Context, r *pecanv1.OpenEpochRequest) (*pecanv1.OpenEpochResponse, error) {
	if err := d.pause(ctx, func() chan struct{} { return d.holdOpens }, func() { d.asksOpen = true }); err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.forget || d.lost[r.GetClientId()] {
		return nil, reason.New(reason.ClientUnknown, "client is unknown")
	}
	d.opened, d.closedBefore = append(d.opened, r), append(d.closedBefore, len(d.closed))
	if r.GetPosition() != nil {
		key := fmt.Sprint(r.GetJobId(), "/", r.GetPosition().GetEpoch())
		if by := d.places[key]; by != "" && by != r.GetRequestId() {
			return nil, reason.New(reason.BadArgument, "epoch %s is open already", key)
		}
		d.places[key] = r.GetRequestId()
		d.starts[r.GetPosition().GetEpoch()] = r.GetPosition()
		d.epochs = max(d.epochs, r.GetPosition().GetEpoch()+1)
		return &pecanv1.OpenEpochResponse{Epoch: r.GetPosition().GetEpoch(), Order: d.orders[r.GetPosition().GetEpoch()]}, nil
	}
	d.epochs++
	return &pecanv1.OpenEpochResponse{Epoch: d.epochs - 1, AlreadyDelivered: d.delivered, Order: d.orders[d.epochs-1]}, nil
}

func (d *testDispatcher) AdoptEpoch(_ context.Context, r *pecanv1.AdoptEpochRequest) (*pecanv1.AdoptEpochResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.loseAdoptions > 0 {
		d.loseAdoptions--
		return nil, status.Error(codes.Unavailable, "away")
	}
	d.adopted = append(d.adopted, r.GetEpoch())
	return &pecanv1.AdoptEpochResponse{}, nil
}

func (d *testDispatcher) WatchEpoch(r *pecanv1.WatchEpochRequest, stream grpc.ServerStreamingServer[pecanv1.EpochUpdate]) error {
	for {
		d.mu.Lock()
		if d.epochUnknown && d.starts[r.GetEpoch()] == nil {
			d.mu.Unlock()
			return reason.New(reason.EpochUnknown, "epoch is unknown")
		}
		u := d.updateOf(r.GetEpoch())
		for stream, next := range d.starts[r.GetEpoch()].GetNext() {
			u.Streams[stream].StartIndex = next
		}
		ended := d.starts[r.GetEpoch()].GetEnded()
		u.Streams = slices.DeleteFunc(u.Streams, func(one *pecanv1.ConsumerStream) bool { return slices.Contains(ended, one.Stream) })
		nameWorkers(u)
		d.version++
		u.Version = d.version
		changed := d.changed
		d.mu.Unlock()
		if err := stream.Send(u); err != nil {
			return err
		}
		select {
		case <-changed:
		case <-stream.Context().Done():
			return nil
		}
	}
}

func (d *testDispatcher) FinishStreams(_ context.Context, r *pecanv1.FinishStreamsRequest) (*pecanv1.FinishStreamsResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, one := range r.GetStreams() {
		d.finished = append(d.finished, finishedReport{one, r.GetEpoch()})
	}
	return &pecanv1.FinishStreamsResponse{}, nil
}

func (d *testDispatcher) ReleaseStreams(_ context.Context, r *pecanv1.ReleaseStreamsRequest) (*pecanv1.ReleaseStreamsResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, one := range r.GetStreams() {
		d.released = append(d.released, releasedReport{one, r.GetEpoch()})
	}
	return &pecanv1.ReleaseStreamsResponse{}, nil
}

func (d *testDispatcher) CloseEpoch(_ context.Context, r *pecanv1.CloseEpochRequest) (*pecanv1.CloseEpochResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.loseCloses > 0 {
		d.loseCloses--
		return nil, status.Error(codes.Unavailable, "away")
	}
	d.closed, d.closings = append(d.closed, r.GetEpoch()), append(d.closings, r)
	delete(d.places, fmt.Sprint(r.GetJobId(), "/", r.GetEpoch()))
	return &pecanv1.CloseEpochResponse{}, nil
}
