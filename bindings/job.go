package bindings

import (
	"context"
	"strings"

	"github.com/pecan-ml/pecan/native/client"
	"github.com/pecan-ml/pecan/native/client/transport"
	"github.com/pecan-ml/pecan/native/op"
	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/proto/reason"
)

// jobRequest is a request from Python.
type jobRequest struct {
	DatasetID       string  `json:"dataset_id"`
	Name            string  `json:"job_name"`
	Mode            string  `json:"mode"`
	Sharding        string  `json:"sharding"`
	Seed            *uint64 `json:"seed"`
	Compression     string  `json:"compression"`
	MaxElementBytes int64   `json:"max_element_bytes"`
	PayloadChecksum bool    `json:"payload_checksum"`

	AllowNondeterministic bool `json:"allow_nondeterministic"`

	Order          string `json:"order"`
	OrderTolerance string `json:"order_tolerance"`
	Cache          string `json:"cache"`
	// Streams is S that the user asks for, 0 for "auto".
	Streams int32 `json:"streams"`
	// Placement has the job's wishes for its workers; nil if all workers serve it.
	Placement *struct {
		Objective     string  `json:"objective"`
		BudgetPerHour float64 `json:"budget_per_hour"`
		MinRemote     int32   `json:"min_remote"`
		MaxRemote     int32   `json:"max_remote"`
		MinLocal      int32   `json:"min_local"`
		MaxLocal      int32   `json:"max_local"`
		TrainerType   string  `json:"trainer_type"`
	} `json:"placement"`
	// Weight and Tenant are the job's part of the workers, and who it belongs to. 0 and "" are the defaults.
	Weight      float64 `json:"weight"`
	Tenant      string  `json:"tenant"`
	FileBytes   int64   `json:"file_bytes"`
	FileRecords int64   `json:"file_records"`
	// TargetWorkers is "unspecified" or "local". LocalWorkers lets the dispatcher decide how many local workers this
	// process runs. StartsLocal is set if this process starts some, or may.
	TargetWorkers string `json:"target_workers"`
	LocalWorkers  bool   `json:"local_workers"`
	StartsLocal   bool   `json:"starts_local"`

	// Extents allows record files to be divided into extents, within ExtentsTimeout if that is above 0.
	Extents        bool    `json:"extents"`
	ExtentsTimeout float64 `json:"extents_timeout_s"`
	// IndexDirectory is the directory of kept record indexes. Go does not see environment variables that Python sets.
	IndexDirectory string `json:"index_directory"`

	Protocol            string      `json:"protocol"`
	MaxOutstandingBytes int64       `json:"max_outstanding_bytes"`
	Timeout             float64     `json:"timeout_s"`
	Components          []component `json:"components"`
}

func (r jobRequest) mode() (pecanv1.Mode, error) {
	var err error
	return enumerator[pecanv1.Mode](&err, pecanv1.Mode_value, "MODE_", "mode", r.Mode), err
}

// enumerator returns the enumerator that people write as this text. It stores the error of an unknown text in err,
// unless err holds an earlier error.
func enumerator[E ~int32](err *error, values map[string]int32, prefix, what, text string) E {
	value, ok := values[prefix+strings.ToUpper(text)]
	if !ok && *err == nil {
		*err = reason.New(reason.BadArgument, "%s %q is unknown", what, text)
	}
	return E(value)
}

func (r jobRequest) options() (*pecanv1.JobOptions, error) {
	var err error
	options := &pecanv1.JobOptions{
		Mode:            enumerator[pecanv1.Mode](&err, pecanv1.Mode_value, "MODE_", "mode", r.Mode),
		Sharding:        enumerator[pecanv1.Sharding](&err, pecanv1.Sharding_value, "SHARDING_", "sharding policy", r.Sharding),
		Compression:     enumerator[pecanv1.Compression](&err, pecanv1.Compression_value, "COMPRESSION_", "compression", r.Compression),
		Order:           enumerator[pecanv1.Order](&err, pecanv1.Order_value, "ORDER_", "order", r.Order),
		OrderTolerance:  enumerator[pecanv1.OrderTolerance](&err, pecanv1.OrderTolerance_value, "ORDER_TOLERANCE_", "order tolerance", r.OrderTolerance),
		Cache:           enumerator[pecanv1.Cache](&err, pecanv1.Cache_value, "CACHE_", "cache", r.Cache),
		TargetWorkers:   enumerator[pecanv1.TargetWorkers](&err, pecanv1.TargetWorkers_value, "TARGET_WORKERS_", "target_workers", r.TargetWorkers),
		MaxElementBytes: r.MaxElementBytes, PayloadChecksum: r.PayloadChecksum, AllowNondeterministic: r.AllowNondeterministic,
		Streams: r.Streams, Weight: r.Weight, Tenant: r.Tenant,
	}
	if err != nil {
		return nil, err
	}
	if p := r.Placement; p != nil {
		options.Placement = &pecanv1.PlacementOptions{
			Objective: p.Objective, BudgetPerHour: p.BudgetPerHour, MinRemote: p.MinRemote, MaxRemote: p.MaxRemote, MinLocal: p.MinLocal, MaxLocal: p.MaxLocal,
			TrainerType: p.TrainerType,
		}
	}
	if r.Seed != nil {
		options.Seed, options.SeedSet = *r.Seed, true
	}
	return options, nil
}

// CreateJob finds or creates a job and returns {"handle", "job_id", "created", "durable", "workers",
// "cardinality", "whole", "blocks", "mode", "requested_mode", "seed", "order", "order_tolerance", "plan":
// {...}}. requested_mode is "" unless a weaker mode runs. The handle must become a tensor (operation PecanJob) or be
// passed to ForgetJob. header and data are the arguments of RegisterDataset, kept for a dispatcher that has lost the
// dataset. undivided is the graph without extents, for states that name it. Each of the three is empty if it is not
// available.
func CreateJob(handle int64, request, header string, data, undivided []byte) (string, error) {
	s, err := lookup(handle)
	if err != nil {
		return "", failed(err)
	}
	var r jobRequest
	if err := decode(request, &r); err != nil {
		return "", failed(err)
	}
	options, err := r.options()
	if err != nil {
		return "", failed(err)
	}
	iteration := client.IterOptions{
		MaxOutstandingBytes: r.MaxOutstandingBytes,
		Protocol:            transport.Protocol(r.Protocol),
		Timeout:             seconds(r.Timeout),
	}
	if err := iteration.Validate(); err != nil {
		return "", failed(err)
	}
	dataset, err := datasetOf(header, data)
	if err != nil {
		return "", failed(err)
	}
	if options.GetTargetWorkers() == pecanv1.TargetWorkers_TARGET_WORKERS_LOCAL && !r.StartsLocal {
		if err := s.RequireLocalWorker(context.Background()); err != nil {
			return "", failed(err)
		}
	}
	owner := &readJob{session: s, spec: client.JobSpec{
		DatasetID: r.DatasetID, Name: r.Name, Options: options, FileBytes: r.FileBytes, FileRecords: r.FileRecords, LocalWorkers: r.LocalWorkers,
	}}
	if owner.undivided, err = datasetOf(header, undivided); err != nil {
		return "", failed(err)
	}
	if owner.job, err = s.CreateRejoiningJob(context.Background(), owner.spec, dataset); err != nil {
		return "", failed(err)
	}
	job := owner.job.Job()
	components := components(r.Components)
	held := op.NewJob(op.JobConfig{
		Components: components,
		Open:       func() (op.Iteration, error) { return owner.current().Open(iteration), nil },
		Closed:     owner.close,
		Broken:     s.broken,
		Warn:       s.messages.warn,
		Owner:      owner,
	})
	plan := job.Plan()
	asked := ""
	if job.Options().GetRequestedMode() != pecanv1.Mode_MODE_UNSPECIFIED {
		asked = pecanv1.Word(job.Options().GetRequestedMode(), "MODE_")
	}
	return encode(map[string]any{
		"handle": held.Handle(), "job_id": job.ID(), "created": job.Created(), "durable": job.Durable(), "workers": job.Workers(),
		"cardinality": client.Cardinality(plan, job.Options(), r.Name != ""), "whole": client.ExactCount(plan, job.Options(), r.Name != ""),
		// TensorFlow reads a block before the training loop takes its rows. If a trainer of a shared job left then, no other
		// trainer would get these rows. So a shared job has no blocks.
		"blocks": r.Name == "" && op.Blocks(components),
		"mode":   pecanv1.Word(job.Options().GetMode(), "MODE_"), "requested_mode": asked, "seed": job.Options().GetSeed(),
		"order": pecanv1.Word(job.Options().GetOrder(), "ORDER_"), "order_tolerance": pecanv1.Word(job.Options().GetOrderTolerance(), "ORDER_TOLERANCE_"),
		"plan": map[string]any{
			"streams": plan.GetNumStreams(), "cut": plan.GetCut().GetKind().String(),
			"repeat": plan.GetRepeat(), "reasons": plan.GetReasons(), "hash": plan.GetHash(), "fingerprint": plan.GetFingerprint(),
			"class": strings.ToUpper(pecanv1.Word(plan.GetDeterminism(), "DETERMINISM_CLASS_")),
		},
	})
}

// NewIterator records that the training loop creates an iterator of a job's dataset, and returns the number
// that identifies it to SaveState.
func NewIterator(job int64) (string, error) {
	r, err := rejoiningJob(job)
	if err != nil {
		return "", failed(err)
	}
	return encode(r.NewIterator())
}

// SaveState returns the token of the position after the first consumed elements of an iterator. iterator is its number
// from NewIterator, or 0 for the elements of all iterators. ended is true if no iterator is open.
func SaveState(job, iterator, consumed int64, ended bool) (string, error) {
	r, err := rejoiningJob(job)
	if err != nil {
		return "", failed(err)
	}
	if consumed < 0 {
		return "", failed(reason.New(reason.BadArgument, "save a state after %d elements: give a number of at least 0", consumed))
	}
	token, err := r.Save(uint64(iterator), uint64(consumed), ended)
	return token, failed(err)
}

// LoadState lets the next iteration of a job's dataset begin at a token's position.
func LoadState(job int64, token string) error {
	r, err := ownerOf(job)
	if err != nil {
		return failed(err)
	}
	return failed(r.load(context.Background(), token))
}

func ownerOf(job int64) (*readJob, error) {
	owner, err := op.Owner(job)
	if err != nil {
		return nil, err
	}
	r, ok := owner.(*readJob)
	if !ok {
		return nil, reason.New(reason.BadArgument, "handle %d is no job", job)
	}
	return r, nil
}

func rejoiningJob(job int64) (*client.RejoiningJob, error) {
	r, err := ownerOf(job)
	if err != nil {
		return nil, err
	}
	return r.current(), nil
}

// ExplainJob is Explain for a job of this process.
func ExplainJob(job int64) (string, error) {
	r, err := rejoiningJob(job)
	if err != nil {
		return "", failed(err)
	}
	return explanation(r.Explain(context.Background()))
}

// ForgetJob ends a job's handle that no tensor was made of. It never fails.
func ForgetJob(handle int64) error {
	op.DropHandle(handle)
	return nil
}
