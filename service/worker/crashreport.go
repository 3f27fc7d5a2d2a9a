package worker

import (
	"context"
	"time"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
)

// crashReportTimeout is less than the process waits for the report.
const crashReportTimeout = 800 * time.Millisecond

// reportCrash reports to the dispatcher that native code crashes this process. The cause is then an element, or
// a graph that is being opened, and not somebody who kills workers.
func (w *Worker) reportCrash(cause string) {
	ctx, cancel := context.WithTimeout(context.Background(), crashReportTimeout)
	defer cancel()
	client := w.session.API()
	if client == nil {
		return
	}
	words := &pecanv1.ReportCrashRequest{WorkerId: w.identity.ID(), Cause: cause, Opening: w.streams.BeingOpened()}
	for _, load := range w.streams.Loads() {
		if load.Opened {
			words.Running = append(words.Running, load)
		}
	}
	_, err := client.ReportCrash(ctx, words)
	w.log.Error("native code crashes this process", "cause", cause, "opening", len(words.Opening), "running", len(words.Running), "reported", err == nil)
}
