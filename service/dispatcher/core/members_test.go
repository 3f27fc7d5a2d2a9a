package core_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/dispatcher/core"
	"github.com/pecan-ml/pecan/service/dispatcher/core/placement"
)

// The workers of a bounded number of jobs change in one tick. Until the others have their turn, a worker that is lost is
// still one of those that serve them.
func TestManyJobsLoseAWorker(t *testing.T) {
	const workers = 4
	f := newFleet(t, workers, 400)
	for round := range 3 * workers {
		for range 5 {
			f.second()
		}
		lost := round % workers
		bye := &pecanv1.WorkerMessage{Kind: &pecanv1.WorkerMessage_Goodbye{Goodbye: &pecanv1.WorkerGoodbye{}}}
		f.decide("goodbye", core.FromWorker{Session: core.SessionID(lost + 1), Message: bye})
		clear(f.runs[lost])
		for range 5 {
			f.now += 100 * time.Millisecond
			f.decide("tick", core.Tick{})
		}
		f.hello(lost)
	}
	if f.windows == 0 {
		t.Error("no window was measured")
	}
}

// The workers of a restarted dispatcher have an order, so that equal inputs give equal decisions.
func TestARestartedCoreOrdersItsWorkers(t *testing.T) {
	const workers = 8
	decided := func() string {
		s := newScript(t)
		run := func(format string, a ...any) []string { return s.run(fmt.Sprintf(format, a...)) }
		run("start cluster=c")
		run("dataset fingerprint=f1")
		hello := func(restarts int) {
			for i := range workers {
				run("hello session=%d worker=w%d slots=1 kind=remote held=j1/0/%d:%d", restarts*workers+i+1, i, i, i+1)
			}
		}
		for i := range workers {
			run("hello session=%d worker=w%d slots=1 kind=remote", i+1, i)
		}
		run("job client=a request=r1 dataset=f1 streams=%d sharding=dynamic objective=cost begins cardinality=100000", workers)
		run("open client=a request=o1 job=j1")
		run("restart")
		hello(1)
		var lines []string
		for _, effect := range s.decide(core.Tick{}).Effects {
			if asked, is := effect.(placement.Request); is {
				lines = run("placed asked=%d job=j1 remote=3 state=search why=probe", asked.Number)
			}
		}
		lines = append(lines, run("wait 400ms")...)
		return strings.Join(lines, "\n")
	}
	want := decided()
	if strings.Count(want, "no longer serves") != workers-3 {
		t.Fatalf("not all other workers leave the job:\n%s", want)
	}
	for range 10 {
		if got := decided(); got != want {
			t.Fatalf("one core decides\n%s\nand an equal one\n%s", want, got)
		}
	}
}
