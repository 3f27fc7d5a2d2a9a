package trial

import (
	"fmt"
	"math"
)

const (
	// minElements elements in fewOpenings tell enough of what is saved; fewerTried do, where there are no more, when the gain is large.
	minElements = 30
	fewOpenings = 4
	fewElements = 6
	largeGain   = 0.2
)

// gain is what another order saves, by the CPU that elements took in both.
//
// Two iterators differ even in the very same order, as long as they live: where their memory lies, and what the allocator makes of that, is
// another. So many elements of one opening say less than it seems, and the interval is made from the means of several openings.
type gain struct {
	n                 int
	original, ordered float64
	// openingMeans are what was saved on average in each opening.
	openingMeans []float64
	// now is the opening that is looked at.
	now spreadOf
}

// spreadOf is a mean and how far values are from it, in Welford's way: the squares of small differences do not drown in those of large values.
type spreadOf struct {
	n             int
	mean, squares float64
}

func (s *spreadOf) add(v float64) {
	s.n++
	before := v - s.mean
	s.mean += before / float64(s.n)
	s.squares += before * (v - s.mean)
}

// half is half of the interval that holds the mean with 95 % confidence, after Student.
func (s *spreadOf) half() float64 {
	if s.n < 2 {
		return math.Inf(1)
	}
	n := float64(s.n)
	return student(s.n-1) * math.Sqrt(s.squares/(n-1)/n)
}

// add takes the CPU of one element in either order, in seconds.
func (g *gain) add(original, ordered float64) {
	g.n++
	g.original += original
	g.ordered += ordered
	g.now.add(original - ordered)
}

// next ends an opening.
func (g *gain) next() {
	if g.now.n > 0 {
		g.openingMeans = append(g.openingMeans, g.now.mean)
	}
	g.now = spreadOf{}
}

// each is the CPU of an element in either order.
func (g *gain) each() (original, ordered float64) {
	n := float64(max(1, g.n))
	return g.original / n, g.ordered / n
}

// sameOrder is the share of what an element takes that is never taken for a gain.
const sameOrder = 0.02

// interval holds what is saved for an element with 95 % confidence.
func (g *gain) interval() (low, high float64) {
	var all spreadOf
	for _, saved := range g.openingMeans {
		all.add(saved)
	}
	original, _ := g.each()
	half := all.half() + sameOrder*original
	return all.mean - half, all.mean + half
}

// few tells whether too little was measured to say anything.
func (g *gain) few() bool { return g.n < minElements || len(g.openingMeans) < fewOpenings }

// doubt says why it is not certain that an order is faster; empty: it is.
func (g *gain) doubt() string {
	original, ordered := g.each()
	low, high := g.interval()
	switch {
	case g.few() && (g.n < fewElements || len(g.openingMeans) < fewOpenings || low < largeGain*original):
		return fmt.Sprintf("not faster with confidence: what a few elements cost was measured, %d in %d openings of the dataset, and it takes %d in %d",
			g.n, len(g.openingMeans), minElements, fewOpenings)
	case low <= 0:
		return fmt.Sprintf("not faster with confidence: an element takes %.3g ms in the registered order and %.3g ms in the new one, between %.3g and %.3g ms less (95 %%)",
			1e3*original, 1e3*ordered, 1e3*low, 1e3*high)
	}
	return ""
}

// open tells whether an order that may be doubted is likelier to be faster than not, so that more elements would tell.
func (g *gain) open() bool {
	low, high := g.interval()
	return g.few() || low+high > 0
}

// settled tells whether more elements of the opening that is looked at would not tell much more than the next opening.
func (g *gain) settled() bool {
	original, _ := g.each()
	return g.now.half() <= max(math.Abs(g.now.mean)/20, original/100)
}

// smallStudent are the quantiles for few degrees of freedom, from 1 on.
var smallStudent = []float64{12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228}

// student is the quantile of Student's t that 97.5 % lie below.
func student(freedom int) float64 {
	if freedom <= len(smallStudent) {
		return smallStudent[max(freedom, 1)-1]
	}
	// Cornish and Fisher's expansion, right to four digits here.
	const z = 1.959964
	f := float64(freedom)
	return z + (z*z*z+z)/(4*f) + (5*math.Pow(z, 5)+16*z*z*z+3*z)/(96*f*f) + (3*math.Pow(z, 7)+19*math.Pow(z, 5)+17*z*z*z-15*z)/(384*f*f*f)
}
