package crashguard

import (
	"fmt"
	"strings"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/proto/reason"
)

// Limits bounds the workers that one stream may kill in a row without progress.
type Limits struct {
	// Crashes are deaths that the worker reported. Deaths are all, whatever their cause.
	Crashes, Deaths int
}

// Serial reports whether the next run of a stream must be serial, so that the marked element is the one that kills. The
// run is serial from the second crash on, and when a quarter of the allowed deaths is left.
func (l Limits) Serial(stream *pecanv1.StoredStream, lost *pecanv1.LeaseLost) bool {
	deaths, crashes := Count(stream, lost)
	return stream.Serial || crashes >= 2 || int(deaths) >= l.Deaths-l.Deaths/4
}

// Reached reports whether a stream has killed as many workers as it may.
func (l Limits) Reached(stream *pecanv1.StoredStream) bool {
	return int(stream.Crashes) >= l.Crashes || int(stream.Deaths) >= l.Deaths
}

// OpeningReached reports whether as many workers as may have crashed while they opened a stream.
func (l Limits) OpeningReached(stream *pecanv1.StoredStream) bool {
	return int(stream.OpeningCrashes) >= l.Crashes
}

// Worker is the last worker that a stream killed.
type Worker struct {
	Address *pecanv1.WorkerAddress
	// Crash is the cause that the worker reported; empty without a report.
	Crash string
}

// Blame returns the elements of a stream that kill workers, in words, and the error of its job. name names the stream.
func (l Limits) Blame(name string, stream *pecanv1.StoredStream, mark *pecanv1.MarkElementsRequest, worker Worker) (elements string, err *reason.Error) {
	elements = fmt.Sprintf("element %d", stream.Progress)
	if stream.SuspectBelow > stream.Progress+1 {
		elements = fmt.Sprintf("elements %d to %d", stream.Progress, stream.SuspectBelow-1)
	}
	if mark.GetReadAhead() {
		elements += " or elements in flight after that"
	}
	files := ""
	if names := mark.GetFiles(); len(names) > 0 {
		files = ", which reads " + strings.Join(names, ", ")
	}
	deaths, last, advice := stream.Crashes, worker.Crash+" of ", "Remove the record, or fix the step that ends the process; the workers' logs have details"
	if int(stream.Crashes) < l.Crashes {
		deaths, last, advice = stream.Deaths, "", "Not all of them reported a cause. If nobody killed them, the host ran out of memory (see the kernel's log): the record or the step needs too much memory"
	}
	return elements, reason.New(reason.ElementPoison, "%s%s: %d workers died in a row while they computed its %s (the last one: %s%s at %s). %s",
		name, files, deaths, elements, last, worker.Address.GetWorkerId(), worker.Address.GetTcp(), advice)
}

// BlameOpening returns the error of a job whose stream kills the workers that open it. name names the stream.
func BlameOpening(name string, stream *pecanv1.StoredStream, worker Worker) *reason.Error {
	return reason.New(reason.ElementPoison, "%s: %d workers died in a row while they opened it (the last one: %s of %s at %s). "+
		"Fix the step that ends the process when its iterator is created; the workers' logs have details",
		name, stream.OpeningCrashes, worker.Crash, worker.Address.GetWorkerId(), worker.Address.GetTcp())
}
