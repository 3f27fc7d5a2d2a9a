package analysis

import (
	"github.com/pecan-ml/pecan/service/graph"
	"github.com/pecan-ml/pecan/service/graph/ops"
)

// expensiveOps are parts of the names of expensive ops.
var expensiveOps = []string{
	"Decode", "Parse", "Resize", "Crop", "ReadFile", "Conv", "MatMul", "Einsum", "FFT", "Svd", "Cholesky", "While",
	"MapDefun", "AdjustHue", "AdjustSaturation", "AdjustContrast", "ExtractImagePatches", "Spectrogram", "Mfcc",
	"RGBToHSV", "HSVToRGB", "ImageProjective", "Unicode", "Deserialize", "LMDB", "Sql", "Load", "Pool",
}

// These are the weights of work. They decide how many streams may repeat the work upstream of the cut.
const (
	WeightNone = iota
	WeightLight
	WeightHeavy
)

// Weight is the weight of the work that a step's functions do for one element.
func (a *Analysis) Weight(s *graph.Step) int {
	f := a.Facts(s)
	switch {
	case f.expensive || f.ReadsFiles || s.Rule.Cost >= 3:
		return WeightHeavy
	case f.ops > 0:
		return WeightLight
	}
	return WeightNone
}

// CostOfHead is the cost of running a step and all steps upstream of it. It is 0 for values that follow from
// an index, 1 for light functions, 2 for reading records and 3 for expensive work.
func (a *Analysis) CostOfHead(s *graph.Step) int {
	return answer(a.costs, s, a.costOf)
}

func (a *Analysis) costOf(s *graph.Step) int {
	cost := s.Rule.Cost
	f := a.Facts(s)
	switch {
	case f.ReadsFiles && s.Rule.Kind == ops.PerElement && f.ops <= 8:
		cost = max(cost, 2)
	case f.expensive || f.ReadsFiles:
		cost = max(cost, 3)
	case f.ops > 0:
		cost = max(cost, 1)
	}
	for _, in := range s.In {
		cost = max(cost, a.CostOfHead(in))
	}
	for _, c := range s.Captured {
		cost = max(cost, a.CostOfHead(c))
	}
	return cost
}
