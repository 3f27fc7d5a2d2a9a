package run

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/pecan-ml/pecan/native/tf"
	"github.com/pecan-ml/pecan/proto/frame"
	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/proto/reason"
	"github.com/pecan-ml/pecan/service/worker/payload"
	"google.golang.org/protobuf/proto"
)

// fetchRemainder reads a stream's remainder from the worker that ran it, which may be this one.
func (ss *Streams) fetchRemainder(ctx context.Context, command *pecanv1.StartStream, from *pecanv1.RemainderSource) ([][]*tf.Tensor, error) {
	key := command.GetId().Key()
	key.Epoch, key.Stream = key.Epoch-from.GetEpochsBefore(), from.GetStream()
	address := from.GetWorker().GetTcp()
	if from.GetWorker().GetWorkerId() == ss.Identity.ID() {
		address = ss.Identity.LocalAddress
	}
	if address == "" {
		return nil, errors.New("its worker has no address")
	}
	ctx, cancel := context.WithTimeout(ctx, remainderTimeout)
	defer cancel()
	batches, err := ss.readRemainder(ctx, address, &pecanv1.DataHello{
		ClientId: "worker-" + ss.Identity.ID(), Version: ss.Options.Version, WorkerId: from.GetWorker().GetWorkerId(), ClusterId: ss.Identity.Cluster(),
	}, &pecanv1.OpenStream{Id: key.ID(), Lease: from.GetLease(), Credit: 1 << 47, Remainder: true,
		PayloadChecksum: command.GetOptions().GetPayloadChecksum()})
	if err != nil {
		return nil, fmt.Errorf("read the remainder of %s from %s: %w", key, address, err)
	}
	rows := int64(0)
	for _, batch := range batches {
		rows += payload.Rows(batch)
	}
	if skip := from.GetSkipRows(); rows != int64(skip+from.GetRows()) {
		for _, batch := range batches {
			tf.ReleaseAll(batch)
		}
		return nil, reason.New(reason.Internal, "%s holds %d remainder rows, %d were expected", key, rows, skip+from.GetRows())
	}
	return payload.SkipRows(batches, int64(from.GetSkipRows()))
}

// remainderTimeout bounds one attempt to fetch a remainder.
const remainderTimeout = 60 * time.Second

// readRemainder opens one channel, reads it to its end and returns its elements.
func (ss *Streams) readRemainder(ctx context.Context, address string, hello *pecanv1.DataHello, open *pecanv1.OpenStream) (batches [][]*tf.Tensor, err error) {
	conn, err := ss.Options.Dial(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	defer func() {
		if err != nil {
			for _, batch := range batches {
				tf.ReleaseAll(batch)
			}
			batches = nil
		}
	}()
	var request []byte
	for _, message := range []struct {
		header frame.Header
		meta   proto.Message
	}{{frame.Header{Type: frame.Hello}, hello}, {frame.Header{Type: frame.Open, Channel: 1}, open}} {
		meta, err := proto.Marshal(message.meta)
		if err != nil {
			return nil, err
		}
		request = frame.Append(request, message.header, meta)
	}
	if _, err := conn.Write(request); err != nil {
		return nil, err
	}
	in := bufio.NewReaderSize(conn, 64<<10)
	frames := frame.NewReader(in)
	for {
		h, meta, err := frames.Next()
		if err != nil {
			return batches, err
		}
		switch h.Type {
		case frame.Data:
			elements, err := payload.ReadElements(in, h, meta)
			batches = append(batches, elements...)
			if err != nil {
				return batches, err
			}
		case frame.End:
			return batches, nil
		case frame.Error:
			detail := new(pecanv1.ErrorDetail)
			if err := proto.Unmarshal(meta, detail); err != nil {
				return batches, err
			}
			return batches, reason.FromDetail(detail)
		}
	}
}
