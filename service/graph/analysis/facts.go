package analysis

import (
	"strings"

	"github.com/pecan-ml/pecan/service/graph"
	"github.com/pecan-ml/pecan/service/graph/nodedef"
)

// Facts describes a function and all functions that it calls, as far as planning needs it.
type Facts struct {
	ops int
	// expensive is set if the function decodes, parses, processes images, does linear algebra or loops. Such work is worth
	// dividing among streams.
	expensive bool
	// ReadsFiles is set if the function opens record files.
	ReadsFiles bool
	// Endless is set if the function creates a dataset that may not end.
	Endless bool
	// Random is set if the function uses a random op whose generator advances from call to call. Then the values depend on
	// the order of the calls.
	Random bool
	// parallel is set if the function creates a dataset that computes several elements at once.
	parallel bool
	// unsequenceable is set if the function creates a parallel dataset that has no sequential form.
	unsequenceable bool
	// decidesCount is set if the values that the function draws may decide how many elements its dataset gives, or whether
	// an element is kept.
	decidesCount bool
	// Seeded is set if the function has random ops or datasets with seeds that Pecan sets.
	Seeded bool
	// Unrepeatable is set if the function gives other values in each run, whatever the seeds are.
	Unrepeatable bool
	// CachesElements is set if the function creates a dataset that caches elements.
	CachesElements bool
	// Stateful is set if the function depends on other state, or changes it.
	Stateful bool
	// Identity is set if the function returns its arguments unchanged.
	Identity bool
	// WritesVariables is set if the function changes a variable that is more than the state of a random generator.
	WritesVariables bool
	// ListsFiles is set if the function lists files while the dataset runs.
	ListsFiles bool
	// IgnoresErrors is set if the function creates a dataset that leaves out elements that fail.
	IgnoresErrors bool
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
	f.IgnoresErrors = f.IgnoresErrors || o.IgnoresErrors
}

// varies reports whether two calls with equal arguments may give different results.
func (f *Facts) varies() bool { return f.Random || f.Unrepeatable || f.Stateful || f.WritesVariables }

// Pure reports whether the result is the only effect of a call.
func (f *Facts) Pure() bool {
	return !f.Seeded && !f.Unrepeatable && !f.CachesElements && !f.Stateful && !f.WritesVariables
}

// Facts merges the facts of a step's op and of all functions that the step calls.
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
