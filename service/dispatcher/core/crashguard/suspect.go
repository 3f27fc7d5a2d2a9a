package crashguard

import pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"

// readAhead is how many elements after a mark may be in flight in steps that read ahead.
const readAhead = 1024

// Of returns the guard under which the next worker runs a stream; nil if no worker died of the stream.
func Of(stream *pecanv1.StoredStream) *pecanv1.CrashGuard {
	if stream.Deaths == 0 {
		return nil
	}
	below := stream.SuspectBelow
	if below > 0 {
		below += stream.InFlight
	}
	return &pecanv1.CrashGuard{First: stream.Progress, Below: below, Serial: stream.Serial}
}

// Run has the known facts about a stream's run on the worker that died.
type Run struct {
	// Open is set if the worker had opened the stream under its newest lease, and had not produced its last element.
	Open bool
	// Produced elements are known.
	Produced uint64
	// Mark is the newest crash mark; nil without one.
	Mark *pecanv1.MarkElementsRequest
	// Crashed is set if the worker reported the crash itself.
	Crashed bool
}

// Suspects is the range of elements that may have killed a worker.
type Suspects struct {
	First uint64
	// Below is 0 if the end of the range is unknown.
	Below uint64
	// InFlight elements from Below on may have been computed too.
	InFlight uint64
}

// Suspect returns the elements of a stream that may have killed its worker; false if the stream did not. A worker under
// guard died of an element that it had marked, of one in flight after the mark, or of nothing in this stream.
func (l Limits) Suspect(stream *pecanv1.StoredStream, run Run) (Suspects, bool) {
	mark, inFlight := run.Mark, uint64(0)
	switch {
	case !run.Open:
		return Suspects{}, false
	case stream.Deaths == 0:
		return Suspects{First: run.Produced, InFlight: stream.InFlight}, true
	case mark == nil:
		return Suspects{}, false
	case mark.ReadAhead && run.Crashed:
		// The range of the last death was too small, so it doubles. A kill does not double it. Whatever the read-ahead, a
		// kill may come before the worker is as far as the last time. The worker gets further if the kill comes later.
		inFlight = max(readAhead, 2*stream.InFlight)
	}
	switch {
	case stream.SuspectBelow > 0 && mark.Below+inFlight <= stream.Progress:
		return Suspects{}, false
	case mark.Below <= mark.First && (!run.Crashed || int(stream.Crashes)+1 >= l.Crashes):
		// A stream that waits may run anything. That is enough to look closer, but not to fail the job.
		return Suspects{}, false
	}
	return Suspects{First: mark.First, Below: mark.Below, InFlight: inFlight}, true
}
