package dispatcher

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"runtime/debug"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/proto/reason"
	"github.com/pecan-ml/pecan/service/dispatcher/validate"
)

const (
	// wireSlack admits requests that are a little too large, so that they get an error of ours.
	wireSlack = 16 << 20
	// maxConnections protects the file descriptors. A trainer or a worker needs one connection.
	maxConnections = 10_000
	// requestWindow bounds what a peer may send before it is read. gRPC's own estimate grows to 16 MiB on a fast
	// network, and an upload would send that much before it is admitted.
	requestWindow = 1 << 20
	// stopGrace is how long requests may take to end when the service stops.
	stopGrace = 2 * time.Second
)

// Serve answers on the listener until ctx ends, and closes the listener. It returns nil after a normal stop, and
// an error if the store failed.
func (d *Dispatcher) Serve(ctx context.Context, listener net.Listener) error {
	server := grpc.NewServer(
		grpc.MaxRecvMsgSize(validate.MaxRequestBytes+wireSlack), grpc.MaxHeaderListSize(16<<10), grpc.MaxConcurrentStreams(1024),
		grpc.ConnectionTimeout(10*time.Second),
		grpc.StaticStreamWindowSize(requestWindow), grpc.StaticConnWindowSize(requestWindow),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: 10 * time.Second, Timeout: 5 * time.Second, MaxConnectionIdle: 10 * time.Minute}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 500 * time.Millisecond, PermitWithoutStream: true}),
		grpc.UnaryInterceptor(d.unary), grpc.StreamInterceptor(d.stream), grpc.ForceServerCodecV2(codec{encoding.GetCodecV2("proto")}),
	)
	pecanv1.RegisterDispatcherServer(server, d)
	running, cancel := context.WithCancel(ctx)
	defer cancel()
	if d.deps.Provider != nil {
		d.planning.Go(func() { d.provideWorkers(running) })
	}
	if d.deps.Learned != nil {
		d.planning.Go(func() { d.keepLearned(running) })
	}
	written := make(chan error, 1)
	go func() {
		written <- d.run(running)
		// Handlers end by themselves when the service stops. A peer that does not read its answers is
		// disconnected.
		cut := time.AfterFunc(stopGrace, server.Stop)
		defer cut.Stop()
		server.GracefulStop()
	}()
	err := server.Serve(&boundedListener{Listener: listener, most: maxConnections})
	cancel()
	runErr := <-written
	server.Stop()
	d.planning.Wait()
	if runErr != nil {
		return runErr
	}
	d.keepRest()
	if err != nil && !errors.Is(err, grpc.ErrServerStopped) {
		return fmt.Errorf("serve %s: %w", listener.Addr(), err)
	}
	return nil
}

// codec reads messages without the fields that this version does not know. Such fields must reach neither the journal
// nor a peer.
type codec struct{ encoding.CodecV2 }

// Unmarshal implements encoding.CodecV2.
func (codec) Unmarshal(data mem.BufferSlice, v any) error {
	message, ok := v.(proto.Message)
	if !ok {
		return fmt.Errorf("read a message of type %T", v)
	}
	buffer := data.MaterializeToBuffer(mem.DefaultBufferPool())
	defer buffer.Free()
	return proto.UnmarshalOptions{DiscardUnknown: true}.Unmarshal(buffer.ReadOnlyData(), message)
}

func (d *Dispatcher) unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (_ any, err error) {
	defer d.settle(info.FullMethod, &err)
	if err := admit(req); err != nil {
		return nil, err
	}
	return next(ctx, req)
}

func (d *Dispatcher) stream(service any, stream grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler) (err error) {
	defer d.settle(info.FullMethod, &err)
	return next(service, admittingStream{stream})
}

// admittingStream checks every message of a stream.
type admittingStream struct{ grpc.ServerStream }

func (a admittingStream) RecvMsg(m any) error {
	if err := a.ServerStream.RecvMsg(m); err != nil {
		return err
	}
	return admit(m)
}

// admit bounds a request.
func admit(req any) error {
	message, ok := req.(proto.Message)
	if !ok {
		return reason.New(reason.Internal, "request of type %T", req)
	}
	if size := proto.Size(message); size > validate.MaxRequestBytes {
		return reason.New(reason.MessageTooLarge, "a request of %d bytes; the limit is %d", size, validate.MaxRequestBytes)
	}
	return nil
}

// settle ends every request. A panic becomes an error of this request alone. Every error gets its code and
// reason, and is logged.
func (d *Dispatcher) settle(method string, err *error) {
	if p := recover(); p != nil {
		*err = d.panicked(method, p)
	}
	if *err == nil {
		return
	}
	own := reason.From(*err)
	*err = own.GRPCStatus().Err()
	d.metrics.Refused(own.Reason)
	level := slog.LevelInfo
	if code := own.Code(); code == codes.Canceled || code == codes.Unavailable {
		level = slog.LevelDebug
	}
	d.deps.Log.Log(context.Background(), level, "request refused", "method", method, "code", status.Code(*err).String(), "reason", string(own.Reason), "error", own.Message)
}

// recovered makes a panic in a goroutine of a request an error of this request. It must be deferred itself.
func (d *Dispatcher) recovered(method string, err *error) {
	if p := recover(); p != nil {
		*err = d.panicked(method, p)
	}
}

func (d *Dispatcher) panicked(method string, p any) error {
	d.deps.Log.Error("a request panicked", "method", method, "panic", p, "stack", string(debug.Stack()))
	return reason.New(reason.Internal, "the dispatcher failed in %s; its log has details", method)
}

func clone[M proto.Message](m M) M { return proto.Clone(m).(M) }
