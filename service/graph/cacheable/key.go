package cacheable

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/graph"
	"github.com/pecan-ml/pecan/service/graph/analysis"
)

// Key hashes everything that decides which elements pass a stream's cached step, except the source files
// and the job's seed. Graphs that are equal up to that step have the same key, whatever follows it. If steps
// draw from seeds, the key covers the whole dataset, because seeds depend on the names of nodes.
func Key(g *graph.Graph, plan *pecanv1.Plan) string {
	h := graph.NewHasher(g)
	sum := sha256.New()
	graph.WriteHashPart(sum, []byte("pecan cache 1"))
	graph.WriteHashPart(sum, h.Node(plan.GetCache().GetNode()))
	if plan.GetCache().GetSeeded() {
		graph.WriteHashPart(sum, []byte(g.Fingerprint()))
		graph.WriteHashPart(sum, []byte(plan.GetCache().GetNode()))
	}
	number := func(n int64) { graph.WriteHashPart(sum, binary.BigEndian.AppendUint64(nil, uint64(n))) }
	number(int64(plan.GetNumStreams()))
	number(int64(plan.GetCut().GetKind()))
	number(plan.GetCut().GetBlock())
	for _, edge := range plan.GetCut().GetEdges() {
		graph.WriteHashPart(sum, h.Node(edge))
	}
	order := int64(0)
	switch {
	case analysis.IsDeterministic(plan.GetMode()):
		order = 2
	case analysis.NeedsRepeatableOrder(plan.GetMode()):
		order = 1
	}
	number(order)
	packed := int64(0)
	if plan.GetCache().GetPacked() {
		packed = 1
	}
	number(packed)
	if plan.GetCut().GetWholeFiles() {
		graph.WriteHashPart(sum, []byte("whole files"))
	}
	if group := plan.GetGroup(); group > 0 {
		number(int64(group))
	}
	return hex.EncodeToString(sum.Sum(nil))
}
