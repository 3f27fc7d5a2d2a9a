package order

import "github.com/pecan-ml/pecan/service/graph"

// sequence lists the steps upstream of a root and the root itself, in the registered order. Where a step joins several
// datasets, such as a zip, the steps of each branch come first, the first branch before the others. Each branch has sections
// of its own.
func sequence(root *graph.Step) []*graph.Step {
	var steps []*graph.Step
	for _, in := range root.In {
		steps = append(steps, sequence(in)...)
	}
	if len(root.In) > 0 {
		steps = append(steps, root)
	}
	return steps
}

// begins reports whether a step is the first one of a branch, or of a dataset without branches.
func begins(s *graph.Step) bool { return len(s.In) == 1 && len(s.In[0].In) == 0 }

// joins reports whether a step reads several datasets.
func joins(s *graph.Step) bool { return len(s.In) > 1 }
