package bindings

import (
	"context"
	"sync"

	"github.com/pecan-ml/pecan/native/client"
	"github.com/pecan-ml/pecan/native/client/resume"
	"github.com/pecan-ml/pecan/proto/reason"
	"github.com/pecan-ml/pecan/service/graph"
	"github.com/pecan-ml/pecan/service/graph/extents"
)

// divided returns the graph of a dataset whose record files are divided into extents; nil without such files. late is true
// if reading their indexes takes longer than the timeout. A timeout of 0 is none.
func divided(g *graph.Graph, timeout float64) (data []byte, late bool) {
	ctx := context.Background()
	if timeout > 0 {
		limited, cancel := context.WithTimeout(ctx, seconds(timeout))
		defer cancel()
		ctx = limited
	}
	data, _, err := extents.Divide(ctx, g)
	return data, err != nil
}

// readJob is a job that a dataset of this process reads. A state may name the graph without extents, or the one with
// them, and its job then replaces the job of the other graph.
type readJob struct {
	session *session
	spec    client.JobSpec
	// undivided is the graph without extents. It is nil if extents cannot change the graph, or if it is not kept.
	undivided *client.Dataset

	mu     sync.Mutex
	job    *client.RejoiningJob
	closed bool
}

func (r *readJob) current() *client.RejoiningJob {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.job
}

func (r *readJob) close() {
	r.mu.Lock()
	r.closed = true
	job := r.job
	r.mu.Unlock()
	// Nobody is left to report to, and a session that ended has closed the job too.
	_ = job.Close()
}

// load lets the next iteration begin at a token's position.
func (r *readJob) load(ctx context.Context, token string) error {
	job := r.current()
	t, err := resume.Decode(token)
	if err != nil || r.undivided == nil || t.GetFingerprint() == job.Job().Plan().GetFingerprint() {
		return job.Load(ctx, token)
	}
	data, err := graphOf(r.undivided.Graph, t.GetFingerprint())
	if err != nil {
		return err
	}
	if data == nil {
		return job.Load(ctx, token)
	}
	fresh, err := r.create(ctx, &client.Dataset{Graph: data, Spec: r.undivided.Spec})
	if err != nil {
		return err
	}
	if err := fresh.Load(ctx, token); err != nil {
		_ = fresh.Close()
		return err
	}
	r.mu.Lock()
	if r.closed || r.job != job {
		r.mu.Unlock()
		_ = fresh.Close()
		return reason.New(reason.Closed, "load a state: the dataset was closed, or another state was loaded meanwhile; load it again")
	}
	r.job = fresh
	r.mu.Unlock()
	_ = job.Close()
	return nil
}

// graphOf returns the graph with a fingerprint: the one without extents, or the one with them; nil if it is neither.
func graphOf(undivided []byte, fingerprint string) ([]byte, error) {
	g, err := graph.Parse(undivided, graph.PeerLimits())
	if err != nil || g.Fingerprint() == fingerprint {
		return undivided, err
	}
	data, _ := divided(g, 0)
	if data == nil {
		return nil, nil
	}
	if g, err = graph.Parse(data, graph.PeerLimits()); err != nil || g.Fingerprint() == fingerprint {
		return data, err
	}
	return nil, nil
}

// create registers a dataset and creates a job that reads it.
func (r *readJob) create(ctx context.Context, dataset *client.Dataset) (*client.RejoiningJob, error) {
	spec := r.spec
	id, _, err := r.session.RegisterDataset(ctx, dataset.Graph, dataset.Spec, "")
	if err != nil {
		return nil, err
	}
	spec.DatasetID = id
	return r.session.CreateRejoiningJob(ctx, spec, dataset)
}

// datasetOf returns a dataset that this process keeps, nil if it keeps none.
func datasetOf(header string, data []byte) (*client.Dataset, error) {
	if len(data) == 0 {
		return nil, nil
	}
	spec, err := datasetSpec(header)
	return &client.Dataset{Graph: data, Spec: spec}, err
}
