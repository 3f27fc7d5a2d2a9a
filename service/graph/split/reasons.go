package split

import (
	"fmt"

	"github.com/pecan-ml/pecan/service/graph"
	"github.com/pecan-ml/pecan/service/graph/ops"
)

func (p *Planner) edgeNames(d Division) string {
	names := ""
	for i, e := range d.Edges {
		if i > 0 {
			names += ", "
		}
		if i == 3 {
			return names + "…"
		}
		names += e.at.Node.GetName()
	}
	return names
}

func (p *Planner) describeCut(d Division) string {
	unit := "by elements"
	switch {
	case d.part > 0:
		unit = fmt.Sprintf("in %d parts", d.splitCount)
	case allFiles(d) && maxBlock(d) > 1:
		unit = fmt.Sprintf("in blocks of %d extents of files", maxBlock(d))
	case allFiles(d) && anyExtents(d):
		unit = "by extents of files"
	case allFiles(d):
		unit = "by files"
	case maxBlock(d) > 1:
		unit = fmt.Sprintf("in blocks of %d elements", maxBlock(d))
	}
	if len(d.Edges) > 1 {
		unit += ", jointly"
	}
	return fmt.Sprintf("The dataset is cut after %s, %s", p.edgeNames(d), unit)
}

func (p *Planner) whyOneStream(d Division) string {
	switch {
	case d.splitCount <= 1 && anyExtents(d):
		return fmt.Sprintf("its records form only one of the %s.", unitOf(d))
	case d.splitCount <= 1 && allFiles(d):
		return "it reads a single file."
	case d.splitCount <= 1:
		return fmt.Sprintf("%s has no more than one share of elements.", p.edgeNames(d))
	}
	return fmt.Sprintf("%s repeats without end, and no number of streams would produce every element equally often. "+
		"Put repeat() at the end of the pipeline to divide the work.", p.edgeNames(d))
}

// whyNotUpstream says why the most expensive edge of a cut is not further upstream, as the rest of a clause. It
// returns "" if the step there says it all.
func (p *Planner) whyNotUpstream(d Division) string {
	var at *graph.Step
	for _, e := range d.Edges {
		if at == nil || p.CostOfHead(e.at) > p.CostOfHead(at) {
			at = e.at
		}
	}
	counts := "a zip"
	switch {
	case at.Rule.Kind == ops.Positional:
		counts = name(at)
	case len(d.Edges) < 2:
		return ""
	}
	for s := at; ; s = s.In[0] {
		switch {
		case s.Rule.Kind == ops.Shuffled:
			return fmt.Sprintf(": %s counts elements, and their order depends on %s, which reads all of them", counts, name(s))
		case s.Rule.Kind == ops.PerElement && p.Facts(s).ReadsFiles && p.namesFiles(s.In[0]):
			return fmt.Sprintf(": %s counts elements, and the records that %s reads are not counted. Compressed, small, damaged and very many "+
				"files have no record index, nor have files that a step mixes", counts, name(s))
		case s.Rule.Kind == ops.PerElement, s.Rule.Kind == ops.Undivided, s.Rule.Kind == ops.Directed:
			return fmt.Sprintf(": %s counts elements, and how many %s gives is not known beforehand", counts, name(s))
		case len(s.In) == 0:
			return ""
		}
	}
}
