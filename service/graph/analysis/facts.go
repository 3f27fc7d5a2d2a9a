package analysis

import (
	"strings"

	"github.com/pecan-ml/pecan/service/graph"
	"github.com/pecan-ml/pecan/service/graph/nodedef"
)

// Facts is what planning needs to know of a function and of everything it calls.
type Facts struct {
	ops int
	// expensive: decoding, parsing, images, linear algebra, loops; work that pays for running in several places.
	expensive bool
	// ReadsFiles: opens record files.
	ReadsFiles bool
	// Endless: makes a dataset that may not end.
	Endless bool
	// Random: uses a random op whose generator goes on from call to call, so that the order of calls tells.
	Random bool
	// parallel: makes a dataset whose elements are computed side by side.
	parallel bool
	// unsequenceable: does so in a way that cannot be put in order.
	unsequenceable bool
	// decidesCount: what it draws may have a say in how many elements the dataset that it makes gives, or whether one is kept.
	decidesCount bool
	// Seeded: has seeds to set, of random ops or of datasets.
	Seeded bool
	// Unrepeatable: gives other values in each run whatever the seeds are.
	Unrepeatable bool
	// CachesElements: keeps the elements of a dataset that a function makes.
	CachesElements bool
	// Stateful: anything else that is more than a function of its arguments.
	Stateful bool
	// Identity: gives its arguments unchanged.
	Identity bool
	// WritesVariables: changes a variable whose value means something.
	WritesVariables bool
	// ListsFiles: finds out while it runs which files there are.
	ListsFiles bool
}

func (f *Facts) add(o *Facts) {
	f.ops += o.ops
	f.expensive = f.expensive || o.expensive
	f.ReadsFiles = f.ReadsFiles || o.ReadsFiles
	f.Endless = f.Endless || o.Endless
	f.Random = f.Random || o.Random
	f.parallel = f.parallel || o.parallel
	f.unsequenceable = f.unsequenceable || o.unsequenceable
	f.decidesCount = f.decidesCount || o.decidesCount
	f.Seeded = f.Seeded || o.Seeded
	f.Unrepeatable = f.Unrepeatable || o.Unrepeatable
	f.CachesElements = f.CachesElements || o.CachesElements
	f.Stateful = f.Stateful || o.Stateful
	f.WritesVariables = f.WritesVariables || o.WritesVariables
	f.ListsFiles = f.ListsFiles || o.ListsFiles
}

// varies tells whether two calls with equal arguments may differ.
func (f *Facts) varies() bool { return f.Random || f.Unrepeatable || f.Stateful || f.WritesVariables }

// Pure tells whether calling the function is of no consequence but its result.
func (f *Facts) Pure() bool {
	return !f.Seeded && !f.Unrepeatable && !f.CachesElements && !f.Stateful && !f.WritesVariables
}

// Facts merges the facts of all functions that a step calls, and of the step's own op.
func (a *Analysis) Facts(s *graph.Step) *Facts {
	if known, ok := a.steps[s.Node]; ok {
		return known
	}
	merged := &Facts{}
	a.steps[s.Node] = merged
	for _, name := range nodedef.CalledFunctions(s.Node) {
		merged.add(a.FunctionFacts(name))
	}
	for _, c := range a.Captures(s.Node) {
		switch {
		case c.Use.IsRandomState():
			merged.Random, merged.Seeded, merged.decidesCount = true, true, true
		case c.Use.IsCounter():
			merged.WritesVariables, merged.decidesCount = true, true
		}
	}
	if strings.Contains(s.Node.GetOp(), "ParseExample") {
		merged.expensive = true
	}
	if names := nodedef.CalledFunctions(s.Node); len(names) == 1 {
		merged.Identity = a.FunctionFacts(names[0]).Identity
	}
	return merged
}
