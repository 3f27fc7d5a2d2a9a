package crashguard

import pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"

// Further reports whether a death concerns a later element than the last death of the stream. If one of the ranges is
// unknown, any known progress counts.
func Further(stream *pecanv1.StoredStream, lost *pecanv1.LeaseLost) bool {
	switch {
	case lost.SuspectBelow == 0:
		return lost.Progress > stream.Progress
	case stream.SuspectBelow == 0:
		return false
	case lost.Crashed:
		return lost.Progress >= stream.SuspectBelow+stream.InFlight
	}
	return lost.Progress >= stream.SuspectBelow
}

// Count returns the deaths in a row at one element, this one included, and how many of them were crashes.
func Count(stream *pecanv1.StoredStream, lost *pecanv1.LeaseLost) (deaths, crashes uint32) {
	if !Further(stream, lost) {
		deaths, crashes = stream.Deaths, stream.Crashes
	}
	deaths++
	if lost.Crashed {
		crashes++
	}
	return deaths, crashes
}
