package autoplacement

import "math"

const (
	// noise is the assumed standard deviation of the logarithm of a window's element time.
	noise = 0.03
	// errorRate is the rate of each error of a comparison, if the scores differ by indifference or more.
	errorRate    = 0.05
	indifference = 0.05
	// mostWindows is the number of windows of a challenger after which the lower mean decides.
	mostWindows = 3
	// oneWindow is the difference that a single window may have by chance: an outlier of 30 % and the noise.
	oneWindow = 0.4
)

// verdict is the result of a comparison.
type verdict int

const (
	undecided verdict = iota
	better
	worse
)

// evidence is the logarithm of a likelihood ratio at which a comparison ends (Wald).
var evidence = math.Log((1 - errorRate) / errorRate)

// compare tests whether a challenger is better or worse than the best known configuration. difference is the
// logarithm of the ratio of their scores. It is a sequential probability ratio test between a difference of
// -indifference and one of +indifference.
func compare(difference float64, challenger, known int) verdict {
	if challenger == 0 || known == 0 {
		return undecided
	}
	windows := float64(challenger) * float64(known) / float64(challenger+known)
	if challenger == 1 || known == 1 {
		difference = math.Copysign(max(0, math.Abs(difference)-oneWindow), difference)
	}
	ratio := -2 * indifference / (noise * noise) * windows * difference
	switch {
	case ratio >= evidence:
		return better
	case ratio <= -evidence:
		return worse
	case challenger < mostWindows || known == 1:
		return undecided
	case difference < 0:
		return better
	}
	return worse
}
