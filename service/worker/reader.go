package worker

import (
	"bufio"
	"context"
	"fmt"
	"hash/crc32"
	"io"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/pecan-ml/pecan/native/tf"
	"github.com/pecan-ml/pecan/proto/frame"
	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/proto/reason"
)

// remainderTimeout bounds one attempt to fetch a remainder.
const remainderTimeout = 60 * time.Second

// maxRemainder bounds one batch that a peer claims to have kept back.
const maxRemainder = 8 << 30

// readRemainder opens one channel, reads all of it and gives its elements.
func (w *Worker) readRemainder(ctx context.Context, address string, hello *pecanv1.DataHello, open *pecanv1.OpenStream) (batches [][]*tf.Tensor, err error) {
	conn, err := w.config.Dial(ctx, "tcp", address)
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
			elements, err := readElements(in, h, meta)
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

// readElements reads the payload of a DATA frame, neither shared nor compressed, into tensors.
func readElements(in io.Reader, h frame.Header, meta []byte) ([][]*tf.Tensor, error) {
	var table frame.Table
	if err := frame.ParseTable(h, meta, &table); err != nil {
		return nil, err
	}
	if h.Flags&(frame.Shared|frame.Snappy|frame.Block) != 0 || h.PayloadLen > maxRemainder || table.Size > h.PayloadLen {
		return nil, reason.New(reason.FrameCorrupt, "read remainder: flags %#x with a payload of %d bytes", uint16(h.Flags), h.PayloadLen)
	}
	payload := make([]byte, h.PayloadLen)
	if _, err := io.ReadFull(in, payload); err != nil {
		return nil, err
	}
	if h.Flags&frame.Checksum != 0 && crc32.Checksum(payload, frame.Castagnoli) != h.PayloadCRC {
		return nil, reason.New(reason.FrameCorrupt, "read remainder: payload checksum differs")
	}
	var elements [][]*tf.Tensor
	for at := 0; table.Components > 0 && at < len(table.Rows); at += table.Components {
		element := make([]*tf.Tensor, 0, table.Components)
		for i := range table.Rows[at : at+table.Components] {
			tensor, err := toTensor(&table.Rows[at+i], payload)
			if err != nil {
				tf.ReleaseAll(element)
				return elements, err
			}
			element = append(element, tensor)
		}
		elements = append(elements, element)
	}
	return elements, nil
}

func toTensor(row *frame.Tensor, payload []byte) (*tf.Tensor, error) {
	dims := make([]int64, len(row.Dims))
	for i, dim := range row.Dims {
		dims[i] = int64(dim)
	}
	bytes := payload[row.Offset : row.Offset+row.Bytes]
	if row.DType != frame.DTString {
		return tf.NewTensor(tf.DataType(row.DType), dims, bytes)
	}
	if n, ok := frame.Elements(row.Dims); !ok || n*8 > row.Bytes {
		return nil, fmt.Errorf("read remainder: a string tensor of %d values in %d bytes", n, row.Bytes)
	}
	return tf.NewStrings(dims, bytes)
}
