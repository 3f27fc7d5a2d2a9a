package dispatcher_test

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/proto/reason"
	"github.com/pecan-ml/pecan/service/dispatcher"
	"github.com/pecan-ml/pecan/service/store"
)

func TestHostileUploadsAreRefused(t *testing.T) {
	s := startService(t, serviceOptions{change: func(c *dispatcher.Config) { c.MaxGraphBytes = 8 << 20 }})
	before := s.d.StateHash()
	header := func(size int64) *pecanv1.RegisterDatasetRequest_Header {
		return &pecanv1.RegisterDatasetRequest_Header{Spec: spec, GraphBytes: size}
	}
	cases := map[string]struct {
		header *pecanv1.RegisterDatasetRequest_Header
		chunks [][]byte
		want   reason.Reason
	}{
		"more than the limit":        {header(8<<20 + 1), nil, reason.MessageTooLarge},
		"an announced 2^62":          {header(1 << 62), nil, reason.MessageTooLarge},
		"nothing":                    {header(0), nil, reason.GraphParse},
		"a negative size":            {header(-1), nil, reason.GraphParse},
		"less than announced":        {header(10), [][]byte{make([]byte, 4)}, reason.BadArgument},
		"more than announced":        {header(10), [][]byte{make([]byte, 11)}, reason.BadArgument},
		"a chunk above 4 MiB":        {header(6 << 20), [][]byte{make([]byte, 5<<20)}, reason.MessageTooLarge},
		"a wanted id with a path":    {&pecanv1.RegisterDatasetRequest_Header{Spec: spec, GraphBytes: 4, DatasetId: "a/b"}, nil, reason.BadName},
		"no header but a chunk":      {nil, [][]byte{make([]byte, 4)}, reason.BadArgument},
		"no element spec":            {&pecanv1.RegisterDatasetRequest_Header{GraphBytes: 4}, nil, reason.SpecMismatch},
		"a graph that is none of it": {header(4), [][]byte{{0xff, 0xff, 0xff, 0xff}}, reason.GraphParse},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			_, err := s.upload(c.header, c.chunks...)
			wantReason(t, err, c.want)
			if s.d.StateHash() != before {
				t.Fatal("the durable state changed")
			}
		})
	}
}

// Stalled uploads hold no more memory than the limit of all uploads. Others are refused with that reason, and
// served once the stalled ones end.
func TestUploadsBeyondTheBoundAreRefused(t *testing.T) {
	s := startService(t, serviceOptions{change: func(c *dispatcher.Config) {
		c.MaxGraphBytes, c.MaxUploadBytes, c.UploadWait = 1<<20, 3<<20, 100*time.Millisecond
	}})
	all := s.ctx()
	var stops []context.CancelFunc
	for range 3 {
		ctx, stop := context.WithCancel(all)
		defer stop()
		stops = append(stops, stop)
		stream, err := s.client.RegisterDataset(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if err := stream.Send(&pecanv1.RegisterDatasetRequest{Part: &pecanv1.RegisterDatasetRequest_Header_{
			Header: &pecanv1.RegisterDatasetRequest_Header{Spec: spec, GraphBytes: 1 << 20}}}); err != nil {
			t.Fatal(err)
		}
	}
	try := func() error {
		_, err := s.upload(&pecanv1.RegisterDatasetRequest_Header{Spec: spec, GraphBytes: 2}, []byte{0x10, 1})
		return err
	}
	// The stalled uploads may arrive after the first attempts.
	err := try()
	for all.Err() == nil && err == nil {
		err = try()
	}
	wantReason(t, err, reason.ServiceLimit)
	if !strings.Contains(err.Error(), "--max-upload-bytes") {
		t.Fatalf("got %v", err)
	}
	stops[0]()
	for all.Err() == nil && status.Code(err) == codes.ResourceExhausted {
		err = try()
	}
	if err != nil {
		t.Fatal(err)
	}
}

// An upload that waits for space is not read before it has some.
func TestAnUploadIsNotReadBeforeItIsAdmitted(t *testing.T) {
	t.Parallel()
	s := startService(t, serviceOptions{change: func(c *dispatcher.Config) {
		c.MaxGraphBytes, c.MaxUploadBytes, c.UploadWait, c.UploadIdle = 16<<20, 16<<20, 3*time.Second, wait
	}})
	begin := func() grpc.ClientStreamingClient[pecanv1.RegisterDatasetRequest, pecanv1.RegisterDatasetResponse] {
		stream, err := s.client.RegisterDataset(s.ctx())
		if err != nil {
			t.Fatal(err)
		}
		if err := stream.Send(&pecanv1.RegisterDatasetRequest{Part: &pecanv1.RegisterDatasetRequest_Header_{
			Header: &pecanv1.RegisterDatasetRequest_Header{Spec: spec, GraphBytes: 16 << 20}}}); err != nil {
			t.Fatal(err)
		}
		return stream
	}
	chunk := func(stream grpc.ClientStreamingClient[pecanv1.RegisterDatasetRequest, pecanv1.RegisterDatasetResponse]) error {
		return stream.Send(&pecanv1.RegisterDatasetRequest{Part: &pecanv1.RegisterDatasetRequest_Chunk{Chunk: make([]byte, 4<<20)}})
	}
	first := begin()
	for range 3 {
		// The third chunk can only be sent when the first was read, so the upload is admitted.
		if err := chunk(first); err != nil {
			t.Fatal(err)
		}
	}
	second := begin()
	// One chunk fits the connection's buffer. The next one finds it full until the upload is refused.
	err := chunk(second)
	if err == nil {
		err = chunk(second)
	}
	if !errors.Is(err, io.EOF) {
		t.Fatalf("an upload that was not admitted sent two chunks: %v", err)
	}
	wantReason(t, second.RecvMsg(&pecanv1.RegisterDatasetResponse{}), reason.ServiceLimit)
}

// An upload that stops, or sends single bytes, loses its space in time.
func TestStalledUploadsAreEnded(t *testing.T) {
	for name, trickle := range map[string]bool{"it stops": false, "it trickles": true} {
		t.Run(name, func(t *testing.T) {
			s := startService(t, serviceOptions{change: func(c *dispatcher.Config) {
				c.MaxGraphBytes, c.MaxUploadBytes, c.UploadWait, c.UploadIdle = 4<<20, 4<<20, wait, 500*time.Millisecond
			}})
			stream, err := s.client.RegisterDataset(s.ctx())
			if err != nil {
				t.Fatal(err)
			}
			header := &pecanv1.RegisterDatasetRequest_Header{Spec: spec, GraphBytes: 4 << 20}
			err = stream.Send(&pecanv1.RegisterDatasetRequest{Part: &pecanv1.RegisterDatasetRequest_Header_{Header: header}})
			for first := true; err == nil && (first || trickle); first = false {
				err = stream.Send(&pecanv1.RegisterDatasetRequest{Part: &pecanv1.RegisterDatasetRequest_Chunk{Chunk: []byte{1}}})
			}
			// There is space for this one after the other was ended. A busy host may be slow for it as well.
			var other error
			for end := time.Now().Add(wait); time.Now().Before(end) && !reason.Is(other, reason.GraphParse); {
				_, other = s.upload(&pecanv1.RegisterDatasetRequest_Header{Spec: spec, GraphBytes: 4 << 20}, make([]byte, 4<<20))
			}
			wantReason(t, other, reason.GraphParse)
			err = stream.RecvMsg(&pecanv1.RegisterDatasetResponse{})
			wantReason(t, err, reason.Unavailable)
			if !strings.Contains(err.Error(), "--upload-idle-timeout") {
				t.Fatal(err)
			}
		})
	}
}

func TestARefusedDatasetLeavesNoGraph(t *testing.T) {
	kept := store.NewMemory()
	s := startService(t, serviceOptions{store: kept})
	header := func() *pecanv1.RegisterDatasetRequest_Header {
		return &pecanv1.RegisterDatasetRequest_Header{DatasetId: "mine", Spec: spec, GraphBytes: 2}
	}
	if _, err := s.upload(header(), []byte{0x10, 1}); err != nil {
		t.Fatal(err)
	}
	_, err := s.upload(header(), []byte{0x10, 2})
	wantReason(t, err, reason.DatasetMismatch)
	for graph, there := range map[byte]bool{1: true, 2: false} {
		fingerprint, _ := planGraphs{}.Check([]byte{0x10, graph}, spec.Components)
		if _, err := kept.Graph(fingerprint); (err == nil) != there {
			t.Errorf("graph %d: %v", graph, err)
		}
	}
}

func TestOneDatasetIDHasOneDataset(t *testing.T) {
	s := startService(t, serviceOptions{})
	upload := func(id string, packed string, graph []byte) (*pecanv1.RegisterDatasetResponse, error) {
		return s.upload(&pecanv1.RegisterDatasetRequest_Header{
			DatasetId: id, GraphBytes: int64(len(graph)),
			Spec: &pecanv1.DatasetSpec{Components: spec.Components, ElementSpec: []byte(packed)},
		}, graph)
	}
	one, two := []byte{0x10, 1}, []byte{0x10, 2}
	first, err := upload("Mine", "tuple", one)
	if err != nil || first.DatasetId != "Mine" {
		t.Fatalf("%v %v", first, err)
	}
	_, err = upload("Mine", "tuple", two)
	wantReason(t, err, reason.DatasetMismatch)
	_, err = upload("Mine", "dict", one)
	wantReason(t, err, reason.DatasetMismatch)
	plain, err := upload("", "tuple", one)
	if err != nil || plain.DatasetId != plain.Fingerprint || plain.Fingerprint != first.Fingerprint {
		t.Fatalf("%v %v", plain, err)
	}
	packed, err := upload("", "dict", one)
	if err != nil || packed.DatasetId == plain.DatasetId || packed.Fingerprint != plain.Fingerprint {
		t.Fatalf("the same graph packed otherwise: %v %v", packed, err)
	}
	known, err := s.client.GetDataset(s.ctx(), &pecanv1.GetDatasetRequest{DatasetId: packed.DatasetId})
	if err != nil || string(known.Spec.ElementSpec) != "dict" {
		t.Fatalf("%v %v", known, err)
	}
}
