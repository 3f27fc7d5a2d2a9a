package worker

import (
	"context"
	"errors"
	"io"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/proto/reason"
	"github.com/pecan-ml/pecan/service/graph"
	"github.com/pecan-ml/pecan/service/internal/clock"
	"google.golang.org/grpc/codes"
)

// API returns the client of the dispatcher's service.
func (s *session) API() pecanv1.DispatcherClient {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.client
}

// fetchGraph reads a dataset's graph from the dispatcher.
func (s *session) fetchGraph(ctx context.Context, fingerprint string) ([]byte, error) {
	client, backoff := s.API(), firstBackoff
	for {
		data, err := receiveGraph(ctx, client, fingerprint)
		if err == nil || ctx.Err() != nil || reason.From(err).Code() != codes.Unavailable {
			return data, err
		}
		s.worker.log.Warn("fetching a graph failed; the worker tries again", "fingerprint", fingerprint, "error", err)
		if !clock.Sleep(ctx, backoff) {
			return nil, ctx.Err()
		}
		backoff = min(2*backoff, lastBackoff)
	}
}

func receiveGraph(ctx context.Context, client pecanv1.DispatcherClient, fingerprint string) ([]byte, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := client.FetchGraph(ctx, &pecanv1.FetchGraphRequest{Fingerprint: fingerprint})
	if err != nil {
		return nil, err
	}
	var data []byte
	for {
		response, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return data, nil
		}
		if err != nil {
			return nil, err
		}
		data = append(data, response.GetChunk()...)
		if len(data) > graph.MostBytes {
			return nil, reason.New(reason.GraphLimit, "the graph has more than %d bytes", graph.MostBytes)
		}
	}
}
