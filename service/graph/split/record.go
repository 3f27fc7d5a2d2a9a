package split

import (
	"crypto/sha256"
	"encoding/hex"
	"math"

	"google.golang.org/protobuf/proto"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/proto/reason"
	"github.com/pecan-ml/pecan/service/graph"
	"github.com/pecan-ml/pecan/service/graph/ops"
)

// PlanHash is the hash of everything in a plan that affects elements.
func PlanHash(plan *pecanv1.Plan) string {
	bare := proto.Clone(plan).(*pecanv1.Plan)
	// Neither the resume strategy nor the cache nor the number of open streams changes an element. The order of the steps is decided per epoch,
	// for the same plan.
	bare.Hash, bare.OrderHash, bare.Reasons, bare.StreamsWhy, bare.Resume, bare.Order, bare.Shuffled = "", "", nil, "", nil, nil, false
	bare.Cache, bare.CacheCandidates, bare.Steps = nil, nil, nil
	raw, err := proto.MarshalOptions{Deterministic: true}.Marshal(bare)
	if err != nil {
		// Marshal fails only on invalid UTF-8, which Unmarshal has already refused.
		raw = []byte(err.Error())
	}
	sum := sha256.Sum256(append([]byte("pecan plan 1\n"), raw...))
	return hex.EncodeToString(sum[:])
}

// orderHash is the hash under which decisions on the order of steps are kept: that of the plan with any number of
// streams above 1.
func orderHash(plan *pecanv1.Plan) string {
	if plan.GetNumStreams() < 2 {
		return ""
	}
	bare := proto.Clone(plan).(*pecanv1.Plan)
	bare.NumStreams, bare.Group = 2, 0
	return PlanHash(bare)
}

// writeCut writes a division into a plan, with the reasons for people.
func (p *Planner) writeCut(plan *pecanv1.Plan, d Division, n streamCount) {
	plan.NumStreams, plan.Group = int32(n.streams), int32(n.group)
	plan.Cut.Kind = pecanv1.Cut_ELEMENTS
	plan.Cut.Block = 1
	files := true
	plan.Cut.Part, plan.Cut.Ordering, plan.Cut.LateShuffles, plan.Cut.LateAfter = d.part, d.ordering, d.late, d.lateAfter
	for _, e := range d.Edges {
		plan.Cut.Edges = append(plan.Cut.Edges, e.at.Node.GetName())
		plan.Cut.Block = max(plan.Cut.Block, e.block)
		files = files && e.files
		plan.Cut.WholeFiles = plan.Cut.WholeFiles || p.wholeFiles && e.files && e.units != nil
	}
	switch {
	case files:
		plan.Cut.Kind = pecanv1.Cut_FILES
	case plan.Cut.Block > 1:
		plan.Cut.Kind = pecanv1.Cut_BLOCKS
	}
	for _, name := range d.ordering {
		if p.g.RuleOf(p.g.Node(name)).Kind == ops.Shuffled {
			addReason(plan, "%s decides the order of the parts in each stream, so that each part can be cached by itself.", name)
		} else {
			addReason(plan, "%s reads one dataset after another in each stream, so that each part can be cached by itself.", name)
		}
	}
	for _, name := range d.late {
		addReason(plan, "%s shuffles the elements of %s instead, so that each part can be cached by itself.", name, d.lateAfter)
	}
	if d.Batch == nil {
		return
	}
	plan.BatchStrategy = pecanv1.BatchStrategy_BATCH_STRATEGY_REMAINDER
	if d.Strategy == closingBatches {
		plan.BatchStrategy = pecanv1.BatchStrategy_BATCH_STRATEGY_CLOSING
	}
	plan.BatchRows, _ = p.batchRows(d.Batch)
	plan.DropRemainder = p.DropsRemainder(d.Batch.Node)
	addReason(plan, "The number of elements that reach %s is not known beforehand: the streams send full batches, and their short last batches are joined.", d.Batch.Node.GetName())
}

// LastStream is the number of a plan's last stream, closing streams included.
func LastStream(plan *pecanv1.Plan) int { return int(plan.TotalStreams()) - 1 }

// FindDivision finds, among the divisions that the rules offer, the one that a plan recorded.
func (p *Planner) FindDivision(root *graph.Step, plan *pecanv1.Plan) (Division, error) {
	p.wholeFiles = plan.GetCut().GetWholeFiles()
	for _, cutWithinFiles := range []bool{false, true} {
		candidates := []Division{p.exactDivision(root, cutWithinFiles)}
		if d, ok := p.joinedDivision(root, cutWithinFiles); ok {
			candidates = append(candidates, d)
		}
		for _, d := range candidates {
			if part := plan.GetCut().GetPart(); part > 0 && len(d.Edges) == 1 && d.Edges[0].block <= math.MaxInt64/part {
				d = p.byParts(d, plan.GetCut())
			}
			written := &pecanv1.Plan{Cut: &pecanv1.Cut{}, BatchStrategy: pecanv1.BatchStrategy_BATCH_STRATEGY_EXACT}
			p.writeCut(written, d, streamCount{streams: int64(plan.GetNumStreams())})
			if samePlanCut(written, plan) {
				return d, nil
			}
		}
	}
	return Division{}, reason.New(reason.Internal, "the plan for dataset %s comes from another version of Pecan: create the job again", plan.GetFingerprint())
}

func samePlanCut(a, b *pecanv1.Plan) bool {
	x, y := a.GetCut(), b.GetCut()
	if a.GetBatchStrategy() != b.GetBatchStrategy() || a.GetBatchRows() != b.GetBatchRows() || x.GetBlock() != y.GetBlock() || x.GetPart() != y.GetPart() || len(x.GetEdges()) != len(y.GetEdges()) {
		return false
	}
	for i := range x.GetEdges() {
		if x.GetEdges()[i] != y.GetEdges()[i] {
			return false
		}
	}
	return true
}
