package journal

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/store"
)

// entry is one line of the output.
type entry struct {
	// Number is the number of the record, or the number of records that a snapshot replaces.
	Number uint64          `json:"number"`
	Kind   string          `json:"kind"`
	Value  json.RawMessage `json:"value,omitempty"`
	// Wrong is the reason for a missing value.
	Wrong string `json:"wrong,omitempty"`
}

var errEnough = errors.New("enough")

// inspect prints the snapshot and the records of a range, up to the first unreadable one.
func inspect(ctx context.Context, r *store.Reader, o Options, out io.Writer) error {
	buffered := bufio.NewWriter(out)
	p := printer{o: o, out: buffered}
	err := p.all(ctx, r)
	return errors.Join(err, buffered.Flush())
}

type printer struct {
	o     Options
	out   io.Writer
	shown uint64
}

func (p *printer) all(ctx context.Context, r *store.Reader) error {
	data, stands, err := r.Snapshot()
	if err != nil {
		return err
	}
	if data != nil && p.o.From <= stands {
		if err := p.print(decode(stands, "snapshot", data, &pecanv1.Snapshot{})); err != nil {
			return err
		}
	}
	last := stands
	err = r.Records(func(number uint64, data []byte) error {
		last = number
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case number < p.o.From:
			return nil
		case p.o.To > 0 && number > p.o.To, p.o.Limit > 0 && p.shown >= p.o.Limit:
			return errEnough
		}
		p.shown++
		return p.print(decodeRecord(number, data))
	})
	if errors.Is(err, errEnough) {
		return nil
	}
	if err == nil {
		if acknowledged, _, markErr := r.Acknowledged(); markErr == nil && acknowledged > last {
			err = fmt.Errorf("records up to %d were acknowledged, but those after %d cannot be read", acknowledged, last)
		}
	}
	if tail := r.Tail(); err == nil && tail.Damage != "" {
		err = fmt.Errorf("%s: %s; the last valid record is %d", tail.Log, tail.Damage, last)
	}
	return err
}

// decodeRecord decodes a record. An invalid record is shown with its error, because stores to inspect may be damaged.
func decodeRecord(number uint64, data []byte) entry {
	record := &pecanv1.Record{}
	if err := proto.Unmarshal(data, record); err != nil {
		return entry{Number: number, Kind: "unknown", Wrong: err.Error()}
	}
	m := record.ProtoReflect()
	set := m.WhichOneof(m.Descriptor().Oneofs().ByName("kind"))
	if set == nil {
		return entry{Number: number, Kind: "unknown", Wrong: "this version does not know this kind of record"}
	}
	return render(number, string(set.Name()), m.Get(set).Message().Interface())
}

func decode(number uint64, kind string, data []byte, into proto.Message) entry {
	if err := proto.Unmarshal(data, into); err != nil {
		return entry{Number: number, Kind: kind, Wrong: err.Error()}
	}
	return render(number, kind, into)
}

func render(number uint64, kind string, m proto.Message) entry {
	text, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(m)
	if err != nil {
		return entry{Number: number, Kind: kind, Wrong: err.Error()}
	}
	// protojson adds spaces at random; json.Compact removes them.
	var compact bytes.Buffer
	if err := json.Compact(&compact, text); err != nil {
		return entry{Number: number, Kind: kind, Wrong: err.Error()}
	}
	return entry{Number: number, Kind: kind, Value: compact.Bytes()}
}

func (p *printer) print(e entry) error {
	if p.o.JSON {
		line, err := json.Marshal(e)
		if err != nil {
			return fmt.Errorf("write JSON: %w", err)
		}
		_, err = fmt.Fprintf(p.out, "%s\n", line)
		return err
	}
	text := string(e.Value)
	if e.Wrong != "" {
		text = "invalid: " + e.Wrong
	}
	_, err := fmt.Fprintf(p.out, "%d  %s  %s\n", e.Number, e.Kind, text)
	return err
}
