package core

import (
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/proto/reason"
	"github.com/pecan-ml/pecan/service/dispatcher/core/durable"
)

// maxLearnedOfGraph bounds what is known of one graph after a merge. That much fits into a file, and into a message.
const maxLearnedOfGraph = 3 << 20

// unix returns the time of day in seconds since 1970.
func (c *Core) unix() int64 { return c.startedS + int64(c.lastInput/time.Second) }

// mergeLearned adds what another dispatcher has learned.
func (c *Core) mergeLearned(req *pecanv1.MergeLearnedRequest) (*pecanv1.MergeLearnedResponse, error) {
	if err := durable.CheckLearned(req.Learned); err != nil {
		return nil, reason.New(reason.BadArgument, "merge what was learned: %w", err)
	}
	return c.merge(req.Learned), nil
}

// merge adds what was found, which CheckLearned accepts. A job that is open decides on its order itself: a trial or a pilot may
// be running.
func (c *Core) merge(learned *pecanv1.Learned) *pecanv1.MergeLearnedResponse {
	found, open := proto.CloneOf(learned), map[durable.OrderKey]bool{}
	for _, job := range c.state.Jobs() {
		if key, off := c.state.OrderKey(job); off == "" {
			open[key] = true
		}
	}
	found.Orders = slices.DeleteFunc(found.Orders, func(o *pecanv1.StoredOrder) bool { return open[durable.KeyOf(o)] })
	answer := &pecanv1.MergeLearnedResponse{OrdersInUse: uint32(len(learned.Orders) - len(found.Orders))}
	// When a job is created, its order is checked against the graph. That is not possible with too many steps.
	found.Orders = slices.DeleteFunc(found.Orders, func(o *pecanv1.StoredOrder) bool { return len(o.Order) > pecanv1.MaxOrderSteps })
	c.notLater(found)
	for fingerprint, of := range found.ByGraph() {
		with := c.state.LearnedWith(fingerprint, of)
		if proto.Size(with) > maxLearnedOfGraph {
			c.warn("what was found of a graph is too large, and is left out", "fingerprint", fingerprint, "bytes", proto.Size(of))
			continue
		}
		if proto.Equal(c.state.LearnedOf(fingerprint), with) {
			continue
		}
		answer.Graphs++
		// The record has the orders that the merge chose, so that a journal does not depend on how a later version chooses.
		of.Orders = slices.DeleteFunc(with.Orders, func(o *pecanv1.StoredOrder) bool { return proto.Equal(c.state.Decision(durable.KeyOf(o)), o) })
		c.emit(&pecanv1.Record{Kind: &pecanv1.Record_LearnedMerged{LearnedMerged: &pecanv1.LearnedMerged{Learned: of, OrdersReplace: true}}})
	}
	return answer
}

// notLater moves times after the present to it: the clock of another host may be wrong. What was used last would stay forever.
func (c *Core) notLater(found *pecanv1.Learned) {
	now := max(c.unix(), 1)
	for _, known := range found.Placements {
		known.KeptS = min(known.KeptS, now)
	}
	for _, caching := range found.Cachings {
		caching.KeptS = min(caching.KeptS, now)
		for _, e := range caching.Epochs {
			e.AtS = min(e.AtS, now)
		}
	}
	for _, history := range found.Histories {
		for _, past := range history.Jobs {
			past.FirstS, past.LastS = min(past.FirstS, now), min(past.LastS, now)
		}
		history.Jobs = pecanv1.NewestJobs(history.Jobs)
	}
}

// learnedOf returns the graph of which a record says something that later jobs use; empty if there is none.
func (c *Core) learnedOf(record *pecanv1.Record) string {
	jobID := ""
	switch kind := record.GetKind().(type) {
	case *pecanv1.Record_ProfileLearned:
		return kind.ProfileLearned.GetProfile().GetFingerprint()
	case *pecanv1.Record_OrderDecided:
		return kind.OrderDecided.GetDecided().GetFingerprint()
	case *pecanv1.Record_OrderJudged:
		return kind.OrderJudged.GetFingerprint()
	case *pecanv1.Record_OrderWidened:
		return kind.OrderWidened.GetFingerprint()
	case *pecanv1.Record_PlacementLearned:
		return kind.PlacementLearned.GetKnown().GetFingerprint()
	case *pecanv1.Record_EpochJoined:
		if !kind.EpochJoined.GetPrefetch() {
			jobID = kind.EpochJoined.GetJobId()
		}
	case *pecanv1.Record_EpochAdopted:
		jobID = kind.EpochAdopted.GetJobId()
	case *pecanv1.Record_CacheDecided:
		jobID = kind.CacheDecided.GetJobId()
	case *pecanv1.Record_LearnedMerged:
		// Its lists are about one graph.
		return kind.LearnedMerged.GetLearned().Graphs()[0]
	}
	if job := c.state.Job(jobID); job != nil {
		return c.state.Dataset(job.DatasetId).GetFingerprint()
	}
	return ""
}
