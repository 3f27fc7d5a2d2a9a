package trial

import (
	"fmt"
	"math"
)

const (
	// minElements elements in fewOpenings are enough to judge a gain. If there are no more, fewElements are
	// enough for a gain of largeGain.
	minElements = 30
	fewOpenings = 4
	fewElements = 6
	largeGain   = 0.2
)

// gain is what another order saves, measured by the CPU of elements in both orders.
//
// Two iterators of the same order also differ for as long as they live. Their memory lies at different addresses, and the
// allocator treats it differently. Many elements of one opening therefore say little. The interval is computed from the
// means of several openings.
type gain struct {
	n                 int
	original, ordered float64
	// openingMeans are the mean savings of each opening.
	openingMeans []float64
	// now is the current opening.
	now spreadOf
}

// spreadOf is a mean and a variance, by Welford's method. The squares of large values do not hide small
// differences.
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

// half is half of the interval that contains the mean with 95 % confidence, by Student's t.
func (s *spreadOf) half() float64 {
	if s.n < 2 {
		return math.Inf(1)
	}
	n := float64(s.n)
	return student(s.n-1) * math.Sqrt(s.squares/(n-1)/n)
}

// add adds the CPU of one element in both orders, in seconds.
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

// each is the CPU of an element in each order.
func (g *gain) each() (original, ordered float64) {
	n := float64(max(1, g.n))
	return g.original / n, g.ordered / n
}

// sameOrder is the share of an element's CPU below which a difference never counts as a gain.
const sameOrder = 0.02

// interval contains the saving of an element with 95 % confidence.
func (g *gain) interval() (low, high float64) {
	var all spreadOf
	for _, saved := range g.openingMeans {
		all.add(saved)
	}
	original, _ := g.each()
	half := all.half() + sameOrder*original
	return all.mean - half, all.mean + half
}

// few reports whether the measurements are too few for a result.
func (g *gain) few() bool { return g.n < minElements || len(g.openingMeans) < fewOpenings }

// certain reports whether a large gain is certain, so that further openings would not change the result.
func (g *gain) certain() bool {
	original, _ := g.each()
	low, _ := g.interval()
	return !g.few() && low >= largeGain*original
}

// doubt returns why an order is not certainly faster; empty if it is.
func (g *gain) doubt() string {
	original, ordered := g.each()
	low, high := g.interval()
	switch {
	case g.few() && (g.n < fewElements || len(g.openingMeans) < fewOpenings || low < largeGain*original):
		return fmt.Sprintf("not faster with confidence: only %d elements in %d openings of the dataset were measured, and %d in %d are needed",
			g.n, len(g.openingMeans), minElements, fewOpenings)
	case low <= 0:
		return fmt.Sprintf("not faster with confidence: an element takes %.3g ms in the registered order and %.3g ms in the new one (%.3g to %.3g ms less with 95 %% confidence)",
			1e3*original, 1e3*ordered, 1e3*low, 1e3*high)
	}
	return ""
}

// open reports whether a doubtful order is more likely faster than not, so that more elements could decide.
func (g *gain) open() bool {
	low, high := g.interval()
	return g.few() || low+high > 0
}

// settled reports whether the next opening would add more information than more elements of this one.
func (g *gain) settled() bool {
	original, _ := g.each()
	return g.now.half() <= max(math.Abs(g.now.mean)/20, original/100)
}

// smallStudent are the quantiles for few degrees of freedom, from 1 on.
var smallStudent = []float64{12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228}

// student is the quantile of Student's t below which 97.5 % lie.
func student(freedom int) float64 {
	if freedom <= len(smallStudent) {
		return smallStudent[max(freedom, 1)-1]
	}
	// This is Cornish and Fisher's expansion, correct to four digits here.
	const z = 1.959964
	f := float64(freedom)
	return z + (z*z*z+z)/(4*f) + (5*math.Pow(z, 5)+16*z*z*z+3*z)/(96*f*f) + (3*math.Pow(z, 7)+19*math.Pow(z, 5)+17*z*z*z-15*z)/(384*f*f*f)
}
