package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
)

// maxFinished is how many streams one FinishStreams may name.
const maxFinished = 4096

// train plays a trainer: it creates a job, opens an epoch, and finishes streams as soon as they have ended.
func (f *fleet) train(ctx context.Context, number int) error {
	conn, err := grpc.NewClient(f.options.dispatcher, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithStatsHandler(&f.toTrainers), grpc.WithStaticStreamWindowSize(window), grpc.WithStaticConnWindowSize(window),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(64<<20)))
	if err != nil {
		return err
	}
	defer conn.Close()
	client, id := pecanv1.NewDispatcherClient(conn), fmt.Sprintf("trainer-%d", number)
	began := time.Now()
	job, err := client.CreateJob(ctx, &pecanv1.CreateJobRequest{
		RequestId: id, ClientId: id, DatasetId: f.options.dataset, ClientHost: "fleet",
		Options: &pecanv1.JobOptions{Mode: pecanv1.Mode_MODE_EXACTLY_ONCE, Order: pecanv1.Order_ORDER_OFF, Streams: int32(f.options.streams)},
	})
	if err != nil {
		return fmt.Errorf("create the job: %w", err)
	}
	if got := int(job.GetPlan().GetNumStreams()); got != f.options.streams {
		return fmt.Errorf("the plan has %d streams instead of %d: %s", got, f.options.streams, job.GetPlan().GetStreamsWhy())
	}
	go sendHeartbeats(ctx, client, id)
	epoch, err := client.OpenEpoch(ctx, &pecanv1.OpenEpochRequest{RequestId: id, ClientId: id, JobId: job.GetJobId()})
	if err != nil {
		return fmt.Errorf("open the epoch: %w", err)
	}
	opened := time.Now()
	if err := f.read(ctx, client, id, job.GetJobId(), epoch.GetEpoch(), began); err != nil {
		return fmt.Errorf("job %s: %w", job.GetJobId(), err)
	}
	f.mu.Lock()
	f.firstS = max(f.firstS, f.first[job.GetJobId()].Sub(opened).Seconds())
	f.mu.Unlock()
	_, err = client.CloseEpoch(ctx, &pecanv1.CloseEpochRequest{ClientId: id, JobId: job.GetJobId(), Epoch: epoch.GetEpoch(), RequestId: id})
	return err
}

// read applies the updates of an epoch until all of its streams are finished.
func (f *fleet) read(ctx context.Context, client pecanv1.DispatcherClient, id, job string, epoch uint64, began time.Time) error {
	watch, err := client.WatchEpoch(ctx, &pecanv1.WatchEpochRequest{ClientId: id, JobId: job, Epoch: epoch})
	if err != nil {
		return err
	}
	finished, first := map[uint32]bool{}, true
	for {
		update, err := watch.Recv()
		if err != nil {
			if errors.Is(err, io.EOF) {
				err = errors.New("the dispatcher ended the updates")
			}
			return err
		}
		if first && !update.GetMore() {
			first = false
			f.mu.Lock()
			f.openS = max(f.openS, time.Since(began).Seconds())
			f.mu.Unlock()
		}
		if update.GetError() != nil {
			return errors.New(update.GetError().GetMessage())
		}
		var ended []*pecanv1.FinishedStream
		for _, stream := range update.GetStreams() {
			if stream.GetEnded() && !finished[stream.GetStream()] {
				finished[stream.GetStream()] = true
				ended = append(ended, &pecanv1.FinishedStream{
					Stream: stream.GetStream(), Lease: stream.GetLease(), Count: stream.GetCount(), Assignment: stream.GetAssignment(),
				})
			}
		}
		for len(ended) > 0 {
			part := ended[:min(len(ended), maxFinished)]
			ended = ended[len(part):]
			response, err := client.FinishStreams(ctx, &pecanv1.FinishStreamsRequest{ClientId: id, JobId: job, Epoch: epoch, Streams: part})
			if err != nil {
				return fmt.Errorf("finish streams: %w", err)
			}
			for _, refused := range response.GetRefused() {
				delete(finished, refused.GetStream())
			}
		}
		if update.GetNoMoreStreams() && len(finished) >= f.options.streams {
			return nil
		}
	}
}

// sendHeartbeats sends a trainer's heartbeats.
func sendHeartbeats(ctx context.Context, client pecanv1.DispatcherClient, id string) {
	for number := uint64(1); ctx.Err() == nil; number++ {
		_, _ = client.ClientHeartbeat(ctx, &pecanv1.ClientHeartbeatRequest{ClientId: id, Number: number})
		select {
		case <-ctx.Done():
		case <-time.After(time.Second):
		}
	}
}
