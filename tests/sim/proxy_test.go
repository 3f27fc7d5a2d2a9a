package sim

import (
	"context"
	"io"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
)

const (
	proxyIP   = "10.0.0.9"
	proxyAddr = proxyIP + ":5050"
)

// proxy stands between trainers and the dispatcher and repeats unary calls: at once, and late.
type proxy struct {
	process *process
	backend *grpc.ClientConn
	ctx     context.Context
	cancel  context.CancelFunc
	late    sync.WaitGroup
	random  *random
	// repeats counts calls that came more than once.
	repeats atomic.Int64
	// upset, if set, may replace message number n of a method's stream that answers a request.
	upset atomic.Pointer[func(method, request string, n int, message []byte) [][]byte]
	// always repeats every call.
	always atomic.Bool
}

type raw struct{}

func (raw) Name() string                    { return "raw" }
func (raw) Marshal(v any) ([]byte, error)   { return *v.(*[]byte), nil }
func (raw) Unmarshal(b []byte, v any) error { *v.(*[]byte) = append([]byte(nil), b...); return nil }

func (c *cluster) startProxy() *proxy {
	host := c.net.Host(proxyIP)
	host.Start()
	backend, err := grpc.NewClient("passthrough:///"+dispatcherAddr, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.ForceCodec(raw{}), grpc.MaxCallRecvMsgSize(64<<20)),
		// Keepalive is as on the trainer's own connection, so that a silent host is noticed.
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 10 * time.Second, Timeout: 5 * time.Second}),
		grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) { return host.Dial(ctx, "tcp", address) }))
	if err != nil {
		c.t.Fatal(err)
	}
	listener, err := host.Listen("tcp", proxyAddr)
	if err != nil {
		c.t.Fatal(err)
	}
	p := &proxy{backend: backend, random: newRandom(c.options.seed, 5)}
	p.ctx, p.cancel = context.WithCancel(context.Background())
	server := grpc.NewServer(grpc.ForceServerCodec(raw{}), grpc.UnknownServiceHandler(p.handle),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: time.Second, PermitWithoutStream: true}))
	p.process = begin(host, func(ctx context.Context) error {
		defer context.AfterFunc(ctx, server.Stop)()
		return server.Serve(listener)
	})
	return p
}

func (p *proxy) end() {
	p.cancel()
	p.late.Wait()
	_ = p.backend.Close()
	_ = p.process.end(stopped)
}

func (p *proxy) roll(n int) int {
	p.random.mu.Lock()
	defer p.random.mu.Unlock()
	return rand.New(p.random.rng).IntN(n)
}

func (p *proxy) handle(_ any, stream grpc.ServerStream) error {
	method, _ := grpc.MethodFromServerStream(stream)
	for _, s := range pecanv1.Dispatcher_ServiceDesc.Streams {
		if strings.HasSuffix(method, "/"+s.StreamName) {
			return p.pass(method, &s, stream)
		}
	}
	var request []byte
	if err := stream.RecvMsg(&request); err != nil {
		return err
	}
	call := func(ctx context.Context) ([]byte, error) {
		var answer []byte
		err := p.backend.Invoke(ctx, method, &request, &answer)
		return answer, err
	}
	again := func(after time.Duration) {
		p.repeats.Add(1)
		p.late.Go(func() {
			select {
			case <-time.After(after):
				_, _ = call(p.ctx)
			case <-p.ctx.Done():
			}
		})
	}
	if roll := p.roll(6); p.always.Load() || roll < 3 {
		if p.always.Load() || roll == 0 {
			again(0)
		}
		again(time.Duration(p.roll(30_000)) * time.Millisecond)
	}
	answer, err := call(stream.Context())
	if err != nil {
		return err
	}
	return stream.SendMsg(&answer)
}

// pass forwards the messages of a stream in both directions.
func (p *proxy) pass(method string, s *grpc.StreamDesc, stream grpc.ServerStream) error {
	ctx, cancel := context.WithCancel(stream.Context())
	defer cancel()
	out, err := p.backend.NewStream(ctx, s, method)
	if err != nil {
		return err
	}
	var request atomic.Pointer[string]
	p.late.Go(func() {
		for {
			var message []byte
			if stream.RecvMsg(&message) != nil {
				_ = out.CloseSend()
				return
			}
			first := string(message)
			request.CompareAndSwap(nil, &first)
			if out.SendMsg(&message) != nil {
				return
			}
		}
	})
	for number := 0; ; number++ {
		var message []byte
		if err := out.RecvMsg(&message); err == io.EOF {
			return nil
		} else if err != nil {
			return err
		}
		messages := [][]byte{message}
		if upset, request := p.upset.Load(), request.Load(); upset != nil && request != nil {
			messages = (*upset)(method, *request, number, message)
		}
		for _, message := range messages {
			if err := stream.SendMsg(&message); err != nil {
				return err
			}
		}
	}
}
