package dispatcher

import (
	"context"
	"errors"
	"io"
	"time"

	"google.golang.org/grpc"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/proto/reason"
	"github.com/pecan-ml/pecan/service/dispatcher/validate"
)

// admitUpload reserves space for a graph; the caller releases it. Stalled uploads must not block others forever.
func (d *Dispatcher) admitUpload(ctx context.Context, size int64) error {
	waiting, stop := context.WithTimeout(ctx, d.cfg.UploadWait)
	defer stop()
	err := d.uploads.Acquire(waiting, size)
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return reason.From(ctx.Err())
	}
	return reason.New(reason.ServiceLimit,
		"register dataset: no space for a graph of %d bytes within %v, because others are being uploaded (at most %d bytes at once, --max-upload-bytes); try again later",
		size, d.cfg.UploadWait, d.cfg.MaxUploadBytes)
}

type uploadStream = grpc.ClientStreamingServer[pecanv1.RegisterDatasetRequest, pecanv1.RegisterDatasetResponse]

// progressBytes is what an upload must send within its idle time. Otherwise single bytes could hold its space
// forever.
const progressBytes = 1 << 20

// upload receives the parts of one upload, each in time and on demand. An upload that waits for admission uses
// only the connection's buffer.
type upload struct {
	want  chan<- struct{}
	parts <-chan part
	idle  time.Duration
	timer *time.Timer
	// fresh counts the bytes since the timer was last reset.
	fresh int
}

type part struct {
	message *pecanv1.RegisterDatasetRequest
	err     error
}

// newUpload reads the stream in its own goroutine. The goroutine ends with the call, because Recv fails after the
// handler returns.
func newUpload(stream uploadStream, idle time.Duration) (*upload, func()) {
	// The buffers let the goroutine end even if nobody takes its last part.
	want, parts := make(chan struct{}, 1), make(chan part, 1)
	go func() {
		for range want {
			message, err := stream.Recv()
			parts <- part{message, err}
		}
	}()
	u := &upload{want: want, parts: parts, idle: idle, timer: time.NewTimer(idle)}
	return u, func() {
		u.timer.Stop()
		close(want)
	}
}

// next must not be called after an error.
func (u *upload) next() (*pecanv1.RegisterDatasetRequest, error) {
	u.want <- struct{}{}
	select {
	case got := <-u.parts:
		if u.fresh += len(got.message.GetChunk()); u.fresh >= progressBytes || got.message.GetHeader() != nil {
			u.restart()
		}
		return got.message, got.err
	case <-u.timer.C:
		return nil, reason.New(reason.Unavailable, "register dataset: the upload sent less than %d bytes in %v; it must send that much or end "+
			"(--upload-idle-timeout): try again over a faster connection", progressBytes, u.idle)
	}
}

// restart resets the timer.
func (u *upload) restart() {
	u.fresh = 0
	u.timer.Reset(u.idle)
}

func (d *Dispatcher) receiveHeader(u *upload) (*pecanv1.RegisterDatasetRequest_Header, error) {
	message, err := u.next()
	if err != nil {
		return nil, endOfUpload(err)
	}
	header := message.GetHeader()
	if header == nil {
		return nil, reason.New(reason.BadArgument, "register dataset: the first message must be the header")
	}
	if header.DatasetId != "" {
		if err := d.check.DatasetID(header.DatasetId); err != nil {
			return nil, err
		}
	}
	switch {
	case header.GraphBytes > d.cfg.MaxGraphBytes:
		return nil, reason.New(reason.MessageTooLarge, "register dataset: the graph has %d bytes, the dispatcher accepts at most %d (--max-graph-bytes); keep large constants in files instead of in the graph", header.GraphBytes, d.cfg.MaxGraphBytes)
	case header.GraphBytes < 1:
		return nil, reason.New(reason.GraphParse, "register dataset: the graph has %d bytes", header.GraphBytes)
	}
	return header, validate.Spec(header.Spec)
}

// receiveGraph takes exactly size bytes. Memory grows with what arrives, not with what was announced.
func receiveGraph(u *upload, size int64) ([]byte, error) {
	// The wait for space does not count.
	u.restart()
	var graph []byte
	for {
		message, err := u.next()
		if errors.Is(err, io.EOF) {
			if int64(len(graph)) != size {
				return nil, reason.New(reason.BadArgument, "register dataset: %d bytes of graph arrived, the header announced %d", len(graph), size)
			}
			return graph, nil
		}
		if err != nil {
			return nil, endOfUpload(err)
		}
		chunk := message.GetChunk()
		switch {
		case message.GetHeader() != nil:
			return nil, reason.New(reason.BadArgument, "register dataset: a second header")
		case len(chunk) > validate.MaxChunkBytes:
			return nil, reason.New(reason.MessageTooLarge, "register dataset: a chunk of %d bytes; the limit is %d", len(chunk), validate.MaxChunkBytes)
		case int64(len(graph))+int64(len(chunk)) > size:
			return nil, reason.New(reason.BadArgument, "register dataset: more than the announced %d bytes of graph", size)
		}
		graph = append(graph, chunk...)
	}
}

func endOfUpload(err error) error {
	if errors.Is(err, io.EOF) {
		return reason.New(reason.BadArgument, "register dataset: nothing was sent")
	}
	return err
}
