package autocache

// Sample is one measurement of a store: how long it took to read or write elements of so many bytes in all.
type Sample struct {
	Elements, Bytes, Seconds float64
}

// FitRate fits a rate to samples of a probe or of production by least squares. Each sample counts by its relative
// error, so that large transfers do not outweigh small ones. Neither part of a rate is negative. Samples of one size
// of elements cannot tell the parts apart; then all time is per byte. Without valid samples the rate is before.
func FitRate(before Rate, samples []Sample) Rate {
	var ee, eb, bb, e, b float64
	for _, s := range samples {
		if !(s.Seconds > 0 && known(s.Seconds) && s.Bytes > 0 && known(s.Bytes) && known(s.Elements)) {
			continue
		}
		x, y := s.Elements/s.Seconds, s.Bytes/s.Seconds
		ee, eb, bb, e, b = ee+x*x, eb+x*y, bb+y*y, e+x, b+y
	}
	if bb == 0 {
		return before
	}
	onlyBytes := Rate{PerByte: b / bb}
	// sameSize is the relative determinant below which all samples have one size.
	const sameSize = 1e-6
	det := ee*bb - eb*eb
	if det <= sameSize*ee*bb {
		return onlyBytes
	}
	fitted := Rate{PerElement: (e*bb - b*eb) / det, PerByte: (b*ee - e*eb) / det}
	switch {
	case fitted.PerElement < 0:
		return onlyBytes
	case fitted.PerByte < 0:
		return Rate{PerElement: e / ee}
	}
	return fitted
}

// Together is what several workers transferred at the same time.
type Together struct {
	Workers                  float64
	Elements, Bytes, Seconds float64
}

// FitShared returns the speed of a store for all workers together, from that of one worker. Workers that were faster together
// show a higher speed, of as many workers at most. What nobody has seen is not expected.
func FitShared(alone Rate, seen []Together) Rate {
	speedup := 1.0
	for _, t := range seen {
		if now := alone.Of(t.Elements, t.Bytes) / t.Seconds; t.Seconds > 0 && known(now) {
			speedup = max(speedup, min(now, t.Workers))
		}
	}
	return Rate{PerElement: alone.PerElement / speedup, PerByte: alone.PerByte / speedup}
}
