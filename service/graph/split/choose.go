package split

import (
	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/proto/reason"
	"github.com/pecan-ml/pecan/service/graph"
	"github.com/pecan-ml/pecan/service/graph/ops"
)

func sameEdges(a, b Division) bool {
	if a.Strategy != b.Strategy || len(a.Edges) != len(b.Edges) {
		return false
	}
	for i := range a.Edges {
		if a.Edges[i].at.Node != b.Edges[i].at.Node || a.Edges[i].block != b.Edges[i].block {
			return false
		}
	}
	return true
}

// chooseBySharding returns the division that a sharding policy requires.
func (p *Planner) chooseBySharding(root *graph.Step, sharding pecanv1.Sharding, env Env) (Division, error) {
	switch sharding {
	case pecanv1.Sharding_SHARDING_FILE:
		p.wholeFiles = true
		d, files := p.fileDivision(root)
		switch {
		case files == 0:
			return Division{}, reason.New(reason.ShardingSource,
				"sharding FILE needs a dataset that reads files named by a list (list_files, TFRecordDataset, interleave over names), and this dataset has no such source: use DATA or DYNAMIC")
		case files < int64(env.StaticWorkers):
			return Division{}, reason.New(reason.ShardingFiles,
				"sharding FILE needs at least one file for each of the %d workers of the dispatcher's list (--worker-addresses), and the dataset has %d: use DATA or FILE_OR_DATA, write more files, or list fewer workers", env.StaticWorkers, files)
		}
		return d, nil
	case pecanv1.Sharding_SHARDING_FILE_OR_DATA:
		if d, files := p.fileDivision(root); files > 0 && files >= int64(env.StaticWorkers) {
			return d, nil
		}
		return p.choose(root, true), nil
	case pecanv1.Sharding_SHARDING_DATA:
		return p.choose(root, true), nil
	}
	return p.choose(root, false), nil
}

// fileDivision returns the best division that cuts by files. If no correct division cuts by files, it returns
// the best correct one. It also returns the number of files, 0 if the dataset names no files.
func (p *Planner) fileDivision(root *graph.Step) (Division, int64) {
	candidates := []Division{p.exactDivision(root, false)}
	if d, ok := p.joinedDivision(root, false); ok {
		candidates = append(candidates, d)
	}
	for _, d := range candidates {
		all := true
		for _, e := range d.Edges {
			all = all && e.files
		}
		if all {
			return d, d.splitCount
		}
	}
	files := int64(0)
	root.Walk(func(s *graph.Step) {
		if s.Rule.Kind == ops.PerElement && p.Facts(s).ReadsFiles && p.namesFiles(s.In[0]) {
			files = max(files, p.splitCount(s.In[0], 1))
		}
	})
	return p.choose(root, false), files
}

// choose returns the exact division if its head costs nothing, and else the cheaper division.
func (p *Planner) choose(root *graph.Step, cutWithinFiles bool) Division {
	best := p.exactDivision(root, cutWithinFiles)
	if p.carried {
		// A stream of an exact division would send its short last batch.
		if d, ok := p.joinedDivision(root, cutWithinFiles); ok {
			return d
		}
		return best
	}
	if p.divisionCost(best) == 0 && p.sameInAllStreams(best) {
		return best
	}
	if d, ok := p.joinedDivision(root, cutWithinFiles); ok {
		if p.divisionCost(d) < p.divisionCost(best) || !p.sameInAllStreams(best) {
			return d
		}
	}
	return best
}

func (p *Planner) divisionCost(d Division) int {
	cost := 0
	for _, e := range d.Edges {
		cost = max(cost, p.CostOfHead(e.at))
	}
	return cost
}
