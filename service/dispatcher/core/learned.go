package core

import (
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/proto/reason"
	"github.com/pecan-ml/pecan/service/dispatcher/core/durable"
)

// unix returns the time of day in seconds since 1970.
func (c *Core) unix() int64 { return c.startedS + int64(c.lastInput/time.Second) }

// mergeLearned adds what another dispatcher has learned. A job that is open decides on its order itself: a trial or a pilot
// may be running.
func (c *Core) mergeLearned(req *pecanv1.MergeLearnedRequest) (*pecanv1.MergeLearnedResponse, error) {
	if err := durable.CheckLearned(req.Learned); err != nil {
		return nil, reason.New(reason.BadArgument, "merge what was learned: %w", err)
	}
	found, open := proto.CloneOf(req.Learned), map[durable.OrderKey]bool{}
	for _, job := range c.state.Jobs() {
		if key, off := c.state.OrderKey(job); off == "" {
			open[key] = true
		}
	}
	found.Orders = slices.DeleteFunc(found.Orders, func(o *pecanv1.StoredOrder) bool { return open[durable.KeyOf(o)] })
	answer := &pecanv1.MergeLearnedResponse{OrdersInUse: uint32(len(req.Learned.Orders) - len(found.Orders))}
	// When a job is created, its order is checked against the graph. That is not possible with too many steps.
	found.Orders = slices.DeleteFunc(found.Orders, func(o *pecanv1.StoredOrder) bool { return len(o.Order) > pecanv1.MaxOrderSteps })
	for _, fingerprint := range found.Graphs() {
		known, of := c.state.LearnedOf(fingerprint), found.Of(fingerprint)
		if proto.Equal(known, pecanv1.MergeLearned(known, of)) {
			continue
		}
		answer.Graphs++
		c.emit(&pecanv1.Record{Kind: &pecanv1.Record_LearnedMerged{LearnedMerged: &pecanv1.LearnedMerged{Learned: of}}})
	}
	return answer, nil
}

// taughtOf returns the graph of which a record says something that later jobs use; empty if there is none.
func (c *Core) taughtOf(record *pecanv1.Record) string {
	jobID := ""
	switch kind := record.GetKind().(type) {
	case *pecanv1.Record_ProfileKept:
		return kind.ProfileKept.GetProfile().GetFingerprint()
	case *pecanv1.Record_OrderDecided:
		return kind.OrderDecided.GetDecided().GetFingerprint()
	case *pecanv1.Record_OrderJudged:
		return kind.OrderJudged.GetFingerprint()
	case *pecanv1.Record_OrderWidened:
		return kind.OrderWidened.GetFingerprint()
	case *pecanv1.Record_PlacementKept:
		return kind.PlacementKept.GetKnown().GetFingerprint()
	case *pecanv1.Record_EpochJoined:
		if !kind.EpochJoined.GetPrefetch() {
			jobID = kind.EpochJoined.GetJobId()
		}
	case *pecanv1.Record_EpochAdopted:
		jobID = kind.EpochAdopted.GetJobId()
	case *pecanv1.Record_LearnedMerged:
		// Its lists are about one graph.
		return kind.LearnedMerged.GetLearned().Graphs()[0]
	}
	if job := c.state.Job(jobID); job != nil {
		return c.state.Dataset(job.DatasetId).GetFingerprint()
	}
	return ""
}
