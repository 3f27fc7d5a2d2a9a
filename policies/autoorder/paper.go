package autoorder

import "fmt"

// Paper is section 3.2 and algorithm 2 of Graur et al. (USENIX ATC 2024), for comparison. It makes one pass over each
// section between fixed steps. A step that shrinks elements goes to the front, so that later ones end up before earlier
// ones. Steps that keep the size follow, then steps that enlarge elements. Steps that shrink elements to a type with which
// processors are slow go to the end. Paper ignores costs and Constraints.
//
// A step with an unknown factor counts as one that keeps the size. The paper moves slow types to the end of the
// pipeline. Here no step passes a fixed one, so they go to the end of their section.
func Paper(p Pipeline) Plan {
	plan := Plan{Order: original(len(p.Steps)), Reasons: make([]string, len(p.Steps))}
	for i := range p.Steps {
		plan.Reasons[i] = fixedReason(&p.Steps[i])
	}
	for _, section := range sections(p.Steps) {
		var shrink, keep, grow, slow []int
		for i := section[0]; i < section[1]; i++ {
			step := &p.Steps[i]
			switch factor, known := step.factor(); {
			case !known:
				keep = append(keep, i)
				plan.Reasons[i] = "its factor is not known and counts as 1"
			case factor < 1 && step.Slow:
				slow = append(slow, i)
				plan.Reasons[i] = fmt.Sprintf("its factor is %.3g, but processors are slow with its output type; such steps go last", factor)
			case factor < 1:
				shrink = append([]int{i}, shrink...)
				plan.Reasons[i] = fmt.Sprintf("its factor is %.3g; steps that shrink elements go first", factor)
			case factor == 1:
				keep = append(keep, i)
				plan.Reasons[i] = "its factor is 1"
			default:
				grow = append(grow, i)
				plan.Reasons[i] = fmt.Sprintf("its factor is %.3g; steps that enlarge elements go last", factor)
			}
		}
		at := plan.Order[section[0]:section[0]:section[1]]
		for _, part := range [][]int{shrink, keep, grow, slow} {
			at = append(at, part...)
		}
	}
	for i := range p.Steps {
		if p.Steps[i].Fixed == "" {
			plan.Reasons[i] = move(plan.Order, i) + ": " + plan.Reasons[i]
		}
	}
	return plan
}
