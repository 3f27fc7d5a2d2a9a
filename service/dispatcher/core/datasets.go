package core

import (
	"fmt"

	"google.golang.org/protobuf/proto"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/proto/reason"
)

// addDataset registers a dataset under the first free id. If the dataset is registered already, it returns the known id.
func (c *Core) addDataset(in AddDataset) (*pecanv1.RegisterDatasetResponse, error) {
	ids := in.DerivedIDs
	if in.WantedID != "" {
		ids = []string{in.WantedID}
	}
	var known *pecanv1.StoredDataset
	for _, id := range ids {
		known = c.state.Dataset(id)
		if known == nil {
			if n := c.state.Datasets(); n >= c.cfg.MaxDatasets {
				return nil, reason.New(reason.ServiceLimit, "register dataset: %d datasets are registered, the dispatcher accepts at most %d (--max-datasets); unused ones are removed after --dataset-timeout, if it is set", n, c.cfg.MaxDatasets)
			}
			dataset := &pecanv1.StoredDataset{DatasetId: id, Fingerprint: in.Fingerprint, Spec: in.Spec, GraphBytes: in.GraphBytes}
			c.emit(&pecanv1.Record{Kind: &pecanv1.Record_DatasetAdded{DatasetAdded: &pecanv1.DatasetAdded{Dataset: dataset}}})
			c.idleDatasets[id] = c.now
			c.event("dataset registered", "dataset", id, "graph_bytes", in.GraphBytes)
			c.recall(in)
			return &pecanv1.RegisterDatasetResponse{DatasetId: id, Fingerprint: in.Fingerprint, Created: true}, nil
		}
		if known.Fingerprint == in.Fingerprint && sameSpec(known.Spec, in.Spec) {
			if _, idle := c.idleDatasets[id]; idle {
				c.idleDatasets[id] = c.now
			}
			c.recall(in)
			return &pecanv1.RegisterDatasetResponse{DatasetId: id, Fingerprint: in.Fingerprint}, nil
		}
	}
	if known == nil {
		return nil, reason.New(reason.Internal, "register dataset: no id was given")
	}
	return nil, reason.New(reason.DatasetMismatch, "register dataset: the id %q belongs to a dataset with %s; choose another dataset_id, or omit it",
		known.DatasetId, datasetDifference(known, in))
}

// recall adds what other dispatchers have kept of the graph of a dataset, before jobs read it. What recall adds is
// forgotten by age only, because a dataset has the graph now.
func (c *Core) recall(in AddDataset) {
	if in.Learned == nil || c.merge(in.Learned).Graphs == 0 {
		return
	}
	c.event("learned state of a dataset loaded", "fingerprint", in.Fingerprint, "orders", len(in.Learned.Orders), "profiles", len(in.Learned.Profiles), "placements", len(in.Learned.Placements))
}

func datasetDifference(known *pecanv1.StoredDataset, in AddDataset) string {
	if known.Fingerprint != in.Fingerprint {
		return fmt.Sprintf("another graph (fingerprint %s, this one has %s)", known.Fingerprint, in.Fingerprint)
	}
	if known.Spec.GetCompression() != in.Spec.GetCompression() {
		return fmt.Sprintf("the same graph but compression %s instead of %s", known.Spec.GetCompression(), in.Spec.GetCompression())
	}
	return "the same graph but another element structure"
}

// sameSpec compares everything that is registered with a graph, except the version of TensorFlow.
func sameSpec(a, b *pecanv1.DatasetSpec) bool {
	return sameElements(a, b) && a.GetCompression() == b.GetCompression()
}

// sameElements compares what trainers see.
func sameElements(a, b *pecanv1.DatasetSpec) bool {
	plain := func(s *pecanv1.DatasetSpec) *pecanv1.DatasetSpec {
		return &pecanv1.DatasetSpec{Components: s.GetComponents(), ElementSpec: s.GetElementSpec()}
	}
	return proto.Equal(plain(a), plain(b))
}

// expireDatasets removes datasets without jobs after DatasetTimeout.
func (c *Core) expireDatasets() {
	if c.cfg.DatasetTimeout == 0 {
		return
	}
	used := map[string]bool{}
	for _, job := range c.state.Jobs() {
		used[job.DatasetId] = true
	}
	for _, id := range c.state.DatasetIDs() {
		if used[id] {
			delete(c.idleDatasets, id)
			continue
		}
		since, ok := c.idleDatasets[id]
		if !ok {
			c.idleDatasets[id] = c.now
			continue
		}
		if c.now-since <= c.cfg.DatasetTimeout {
			continue
		}
		fingerprint := c.state.Dataset(id).Fingerprint
		c.emit(&pecanv1.Record{Kind: &pecanv1.Record_DatasetRemoved{DatasetRemoved: &pecanv1.DatasetRemoved{DatasetId: id, KeepsLearned: true}}})
		delete(c.idleDatasets, id)
		c.event("dataset removed", "dataset", id, "why", "no job used it")
		if !c.state.UsesGraph(fingerprint) {
			c.effect(RemoveGraph{fingerprint})
		}
	}
}
