package bindings

import (
	"context"
	"fmt"
	"log/slog"
	"runtime/cgo"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/encoding/protojson"

	"github.com/pecan-ml/pecan/native/client"
	"github.com/pecan-ml/pecan/native/op"
	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/proto/reason"
	"github.com/pecan-ml/pecan/service/graph"
	"github.com/pecan-ml/pecan/service/graph/extents"
	"github.com/pecan-ml/pecan/service/graph/split"
)

// component is pecanv1.ComponentSpec as Python writes it. Dims is nil if the rank is unknown.
type component struct {
	DType int32   `json:"dtype"`
	Dims  []int64 `json:"dims"`
}

func components(from []component) []*pecanv1.ComponentSpec {
	specs := make([]*pecanv1.ComponentSpec, len(from))
	for i, c := range from {
		specs[i] = &pecanv1.ComponentSpec{Dtype: c.DType, Dims: c.Dims, UnknownRank: c.Dims == nil}
	}
	return specs
}

// session has the objects behind a session number.
type session struct {
	*client.Session
	messages *messages
	failure  atomic.Pointer[reason.Error]
}

// broken returns the message of Fail, if it was called.
func (s *session) broken() error {
	if err := s.failure.Load(); err != nil {
		return err
	}
	return nil
}

func lookup(handle int64) (s *session, err error) {
	defer func() {
		if recover() != nil {
			err = reason.New(reason.Closed, "the session with the service is closed")
		}
	}()
	s, ok := cgo.Handle(handle).Value().(*session)
	if !ok {
		return nil, reason.New(reason.BadArgument, "%d is not the number of an open session", handle)
	}
	return s, nil
}

// Connect connects to a dispatcher. config is {"target", "timeout_s", "version", "trainer"}.
func Connect(config string) (int64, error) {
	var c struct {
		Target  string  `json:"target"`
		Timeout float64 `json:"timeout_s"`
		Version string  `json:"version"`
		Trainer string  `json:"trainer"`
	}
	if err := decode(config, &c); err != nil {
		return 0, failed(err)
	}
	kept := &messages{}
	s, err := client.Connect(context.Background(), client.Config{
		Target:    c.Target,
		Timeout:   seconds(c.Timeout),
		Version:   c.Version,
		TrainerID: c.Trainer,
		Logger:    slog.New(kept),
	})
	if err != nil {
		return 0, failed(err)
	}
	return int64(cgo.NewHandle(&session{Session: s, messages: kept})), nil
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

// Disconnect closes a session and everything that belongs to it. Datasets that still refer to it fail with a
// clear error when they are read.
func Disconnect(handle int64) error {
	s, err := lookup(handle)
	if err != nil {
		return failed(err)
	}
	cgo.Handle(handle).Delete()
	return failed(s.Close())
}

// Fail makes every waiting iteration of the session fail with a message, because Python knows that no element
// will arrive.
func Fail(handle int64, message string) error {
	s, err := lookup(handle)
	if err != nil {
		return failed(err)
	}
	s.failure.Store(reason.New(reason.Unavailable, "%s", message))
	return nil
}

// CheckGraph reports what is wrong with a serialised dataset before any service is called. With {"mode",
// "allow_nondeterministic"} in options it also checks whether a job may run so. With {"extents", "extents_timeout_s",
// "index_directory"} it divides large record files into extents. It returns {"fingerprint", "warnings"} and these keys:
//
//   - file_bytes, file_records: bytes of the files that the dataset names, and about how many records they have; 0 if unknown
//   - kept: CreateJob keeps the dataset for a dispatcher that loses it, so pass it on
//   - divided: the graph with extents, null if it has none
//   - late: the indexes were not read in time; the reading continues, and a later call gets them
func CheckGraph(data []byte, options string) (string, error) {
	g, err := graph.Parse(data, graph.PeerLimits())
	if err != nil {
		return "", failed(err)
	}
	var r jobRequest
	if err := decode(options, &r); err != nil {
		return "", failed(err)
	}
	mode := pecanv1.Mode_MODE_UNSPECIFIED
	if r.Mode != "" {
		if mode, err = r.mode(); err != nil {
			return "", failed(err)
		}
		if err := split.CheckMode(g, &pecanv1.JobOptions{Mode: mode, AllowNondeterministic: r.AllowNondeterministic}); err != nil {
			return "", failed(err)
		}
	}
	size, records := fileSizes(g, sizesDeadline(mode))
	answer := map[string]any{
		"fingerprint": g.Fingerprint(), "warnings": g.Warnings(), "kept": len(data) <= client.MaxRetainedGraph, "file_bytes": size, "file_records": records,
	}
	if r.Extents {
		if r.IndexDirectory != "" {
			extents.KeepIn(r.IndexDirectory)
		}
		answer["divided"], answer["late"] = divided(g, r.ExtentsTimeout)
	}
	return encode(answer)
}

// RegisterDataset stores a dataset. header is {"dataset_id", "components", "element_spec",
// "tensorflow_version", "compression"}; the result is {"dataset_id", "fingerprint"}.
func RegisterDataset(handle int64, header string, data []byte) (string, error) {
	s, err := lookup(handle)
	if err != nil {
		return "", failed(err)
	}
	var h struct {
		DatasetID string `json:"dataset_id"`
	}
	if err := decode(header, &h); err != nil {
		return "", failed(err)
	}
	spec, err := datasetSpec(header)
	if err != nil {
		return "", failed(err)
	}
	id, fingerprint, err := s.RegisterDataset(context.Background(), data, spec, h.DatasetID)
	if err != nil {
		return "", failed(err)
	}
	return encode(map[string]any{"dataset_id": id, "fingerprint": fingerprint})
}

func datasetSpec(header string) (*pecanv1.DatasetSpec, error) {
	var h struct {
		Components  []component `json:"components"`
		ElementSpec string      `json:"element_spec"`
		TensorFlow  string      `json:"tensorflow_version"`
		Compression string      `json:"compression"`
	}
	if err := decode(header, &h); err != nil {
		return nil, err
	}
	return &pecanv1.DatasetSpec{
		Components:        components(h.Components),
		ElementSpec:       []byte(h.ElementSpec),
		TensorflowVersion: h.TensorFlow,
		Compression:       h.Compression,
	}, nil
}

// GetDataset returns what the dispatcher knows of a dataset: {"dataset_id", "fingerprint", "element_spec",
// "compression"}. It fails if spec, a list of components or null, differs from the registered one.
func GetDataset(handle int64, id, spec string) (string, error) {
	s, err := lookup(handle)
	if err != nil {
		return "", failed(err)
	}
	var wanted []component
	if err := decode(spec, &wanted); err != nil {
		return "", failed(err)
	}
	answer, err := s.GetDataset(context.Background(), id)
	if err != nil {
		return "", failed(err)
	}
	if wanted != nil {
		if err := graph.CompareSpecs(components(wanted), answer.GetSpec().GetComponents()); err != nil {
			return "", failed(fmt.Errorf("dataset %q: %w", id, err))
		}
	}
	return encode(map[string]any{
		"dataset_id": answer.GetDatasetId(), "fingerprint": answer.GetFingerprint(),
		"element_spec": string(answer.GetSpec().GetElementSpec()), "compression": answer.GetSpec().GetCompression(),
	})
}

// Status returns the dispatcher's status for operators: the JSON form of pecan.v1.StatusResponse with the
// proto's field names, also of fields that have their default value.
func Status(handle int64) (string, error) {
	s, err := lookup(handle)
	if err != nil {
		return "", failed(err)
	}
	answer, err := s.Status(context.Background())
	if err != nil {
		return "", failed(err)
	}
	text, err := protojson.MarshalOptions{UseProtoNames: true, EmitDefaultValues: true}.Marshal(answer)
	return string(text), failed(err)
}

// Explain returns why the steps of a job run in their order. The job is given by id or name. The result is the JSON form of
// pecan.v1.ExplainResponse with the proto's field names.
func Explain(handle int64, job string) (string, error) {
	s, err := lookup(handle)
	if err != nil {
		return "", failed(err)
	}
	return explanation(s.Session.Explain(context.Background(), job))
}

func explanation(answer *pecanv1.ExplainResponse, err error) (string, error) {
	if err != nil {
		return "", failed(err)
	}
	text, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(answer)
	return string(text), failed(err)
}

// Messages returns the messages of the session's client for the trainer's log since the last call, and removes them. The
// result is a JSON list of {"level", "text"}, where level is "warning" or "info".
func Messages(handle int64) (string, error) {
	s, err := lookup(handle)
	if err != nil {
		return "", failed(err)
	}
	return encode(s.messages.take())
}

// LocalWorkers reports how many local workers of this process run and how many may run at most. It returns what the
// dispatcher wants: {"jobs", "number", "why"}. number is -1 before it has decided.
func LocalWorkers(handle, running, most int64) (string, error) {
	s, err := lookup(handle)
	if err != nil {
		return "", failed(err)
	}
	wanted := s.LocalWorkers(int(running), int(most))
	return encode(map[string]any{"jobs": wanted.Jobs, "number": wanted.Number, "why": wanted.Why})
}

// Stats returns how much memory and how many objects this process holds, for leak checks and status displays.
func Stats(handle int64) (string, error) {
	s, err := lookup(handle)
	if err != nil {
		return "", failed(err)
	}
	return encode(map[string]any{"pool": s.Pool().Stats(), "live": op.Live()})
}

// HandleInterrupts lets Ctrl-C end waits for elements. Python's own handler must be installed already. It
// never fails; gopy gives functions without a result another argument.
func HandleInterrupts() error {
	op.HandleInterrupts()
	return nil
}

// AcknowledgeInterrupts records that Python's handler runs, so that no wait has to end for it. It never fails.
func AcknowledgeInterrupts() error {
	op.AcknowledgeInterrupts()
	return nil
}
