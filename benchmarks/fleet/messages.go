package main

import (
	"context"
	"sync/atomic"

	"google.golang.org/grpc/stats"
)

// sizes is the largest message in each direction of a group of connections.
type sizes struct{ received, sent atomic.Int64 }

func (s *sizes) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context   { return ctx }
func (s *sizes) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }
func (s *sizes) HandleConn(context.Context, stats.ConnStats)                       {}

// HandleRPC notes the size of a message.
func (s *sizes) HandleRPC(_ context.Context, event stats.RPCStats) {
	switch event := event.(type) {
	case *stats.InPayload:
		raise(&s.received, event.Length)
	case *stats.OutPayload:
		raise(&s.sent, event.Length)
	}
}

func raise(largest *atomic.Int64, length int) {
	for {
		old := largest.Load()
		if int64(length) <= old || largest.CompareAndSwap(old, int64(length)) {
			return
		}
	}
}
