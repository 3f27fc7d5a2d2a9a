package split

import (
	"fmt"
)

func (p *Planner) edgeNames(w Division) string {
	names := ""
	for i, e := range w.Edges {
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

func (p *Planner) describeCut(w Division) string {
	unit := "by elements"
	switch {
	case allFiles(w):
		unit = "by files"
	case maxBlock(w) > 1:
		unit = fmt.Sprintf("in blocks of %d elements", maxBlock(w))
	}
	if len(w.Edges) > 1 {
		unit += ", jointly"
	}
	return fmt.Sprintf("The dataset is cut after %s, %s", p.edgeNames(w), unit)
}

func (p *Planner) whyOneStream(w Division) string {
	switch {
	case w.splitCount <= 1 && allFiles(w):
		return "it reads a single file."
	case w.splitCount <= 1:
		return fmt.Sprintf("%s has no more than one share of elements.", p.edgeNames(w))
	}
	return fmt.Sprintf("%s repeats without end, and no number of streams would produce every element equally often. "+
		"Put repeat() at the end of the pipeline to divide the work.", p.edgeNames(w))
}
