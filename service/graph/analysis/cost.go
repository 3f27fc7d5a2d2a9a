package analysis

import (
	"github.com/pecan-ml/pecan/service/graph"
	"github.com/pecan-ml/pecan/service/graph/ops"
)

// heavyOps are found by a part of their name.
var heavyOps = []string{
	"Decode", "Parse", "Resize", "Crop", "ReadFile", "Conv", "MatMul", "Einsum", "FFT", "Svd", "Cholesky", "While",
	"MapDefun", "AdjustHue", "AdjustSaturation", "AdjustContrast", "ExtractImagePatches", "Spectrogram", "Mfcc",
	"RGBToHSV", "HSVToRGB", "ImageProjective", "Unicode", "Deserialize", "LMDB", "Sql", "Load", "Pool",
}

// The weight of work, for choosing how often a head may run.
const (
	WeightNone = iota
	WeightLight
	WeightHeavy
)

// Weight is the weight of what a step's functions do for one element.
func (a *Analysis) Weight(s *graph.Step) int {
	f := a.Facts(s)
	switch {
	case f.expensive || f.ReadsFiles:
		return WeightHeavy
	case f.ops > 0:
		return WeightLight
	}
	return WeightNone
}

// CostOfHead tells what it costs to run a step and all below it: 0 what an index gives, 1 light functions, 2 reading
// records, 3 real work.
func (a *Analysis) CostOfHead(s *graph.Step) int {
	if known, ok := a.costs[s]; ok {
		return known
	}
	a.costs[s] = a.costOf(s)
	return a.costs[s]
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
