package op

import (
	"errors"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc/codes"

	"github.com/pecan-ml/pecan/native/client"
	"github.com/pecan-ml/pecan/native/client/element"
	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/proto/reason"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	dtFloat, dtInt64, dtString, dtFloat8 = 1, 9, 7, 25
)

func component(dtype int32, dims ...int64) *pecanv1.ComponentSpec {
	return &pecanv1.ComponentSpec{Dtype: dtype, Dims: dims}
}

func TestBlocksAreForSmallElementsOfFixedSize(t *testing.T) {
	cases := map[string]struct {
		components []*pecanv1.ComponentSpec
		elements   int
	}{
		"scalars":                            {[]*pecanv1.ComponentSpec{component(dtInt64)}, maxBlockElements},
		"elements that fill a block":         {[]*pecanv1.ComponentSpec{component(dtFloat, 1024)}, blockBytes / 4096},
		"elements just small enough":         {[]*pecanv1.ComponentSpec{component(dtInt64, 2, 1024)}, blockBytes / maxElementBytes},
		"elements too large":                 {[]*pecanv1.ComponentSpec{component(dtInt64, 2049)}, 0},
		"elements too large together":        {[]*pecanv1.ComponentSpec{component(dtInt64, 1025), component(dtInt64, 1025)}, 0},
		"strings":                            {[]*pecanv1.ComponentSpec{component(dtInt64), component(dtString)}, 0},
		"a size that is not known":           {[]*pecanv1.ComponentSpec{component(dtInt64, -1)}, 0},
		"a rank that is not known":           {[]*pecanv1.ComponentSpec{{Dtype: dtInt64, UnknownRank: true}}, 0},
		"elements without bytes":             {[]*pecanv1.ComponentSpec{component(dtInt64, 3, 0)}, 0},
		"a dtype that unbatch does not know": {[]*pecanv1.ComponentSpec{component(dtFloat8)}, 0},
		"sizes whose product overflows":      {[]*pecanv1.ComponentSpec{component(dtInt64, 1<<32, 1<<32)}, 0},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			if got := blockElements(c.components); got != c.elements {
				t.Errorf("%d elements, want %d", got, c.elements)
			}
			if Blocks(c.components) != (c.elements > 0) {
				t.Errorf("Blocks returns %v", !(c.elements > 0))
			}
		})
	}
}

// answers is an Iteration with prepared results.
type answers struct {
	mu     sync.Mutex
	queue  []answer
	closed chan struct{}
	why    string
	// computing is the second answer of Waiting.
	computing bool
}

type answer struct {
	elements *element.Elements
	status   client.Status
	err      error
}

func (a *answers) NextElement(time.Duration) (*element.Elements, client.Status, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.queue) == 0 {
		return nil, client.NotYet, nil
	}
	next := a.queue[0]
	a.queue = a.queue[1:]
	return next.elements, next.status, next.err
}

func (a *answers) NextBlock(_ int, wait time.Duration) (*element.Elements, client.Status, error) {
	return a.NextElement(wait)
}

func (a *answers) Waiting() (string, bool) { return a.why, a.computing }

func (a *answers) Close() error {
	close(a.closed)
	return nil
}

func row(dtype uint32, dims ...int64) *element.Elements {
	return &element.Elements{Count: 1, Tensors: []element.Tensor{{DType: dtype, Dims: dims}}}
}

func open(t *testing.T, config JobConfig, queue ...answer) (*iteration, *answers) {
	t.Helper()
	inner := &answers{queue: queue, closed: make(chan struct{}), why: "no worker is registered"}
	if config.Components == nil {
		config.Components = []*pecanv1.ComponentSpec{component(dtInt64)}
	}
	config.Open = func() (Iteration, error) { return inner, nil }
	it, err := newIteration(NewJob(config))
	if err != nil {
		t.Fatal(err)
	}
	return it, inner
}

func TestAnIterationsStatusAfterErrors(t *testing.T) {
	failed := func(r reason.Reason) answer { return answer{status: client.Failed, err: reason.New(r, "it")} }
	broken := func(err error) answer { return answer{status: client.Broken, err: err} }
	ready := answer{elements: row(dtInt64), status: client.Ready}
	cases := map[string]struct {
		queue []answer
		want  string
	}{
		"an element that fails is left out":             {[]answer{failed(reason.ElementFailed), ready, {status: client.End}}, "failed ready end end"},
		"a file that is not there is left out":          {[]answer{failed(reason.FileNotVisible), ready, {status: client.End}}, "failed ready end end"},
		"elements that fail again and again end it":     {[]answer{broken(reason.New(reason.ElementFailed, "it")), ready}, "broken broken"},
		"an unknown job ends it":                        {[]answer{broken(reason.New(reason.JobUnknown, "it")), ready}, "broken broken broken"},
		"an outage may pass":                            {[]answer{failed(reason.Unavailable), ready, failed(reason.Unavailable), ready}, "failed ready failed ready"},
		"many outages in a row may pass":                {[]answer{failed(reason.Unavailable), failed(reason.NoWorkers), failed(reason.Unavailable), failed(reason.NoWorkers), ready}, "failed failed failed failed ready"},
		"an error without a reason ends it":             {[]answer{broken(errors.New("it")), ready}, "broken broken"},
		"the end stays the end":                         {[]answer{{status: client.End}, ready}, "end end"},
		"another dtype is an error in its place":        {[]answer{{elements: row(dtFloat), status: client.Ready}, ready}, "failed ready"},
		"another rank is an error in its place":         {[]answer{{elements: row(dtInt64, 1), status: client.Ready}, ready}, "failed ready"},
		"another number of components is an error, too": {[]answer{{elements: &element.Elements{Count: 1}, status: client.Ready}, ready}, "failed ready"},
		"nothing yet": {nil, "not yet not yet"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			it, inner := open(t, JobConfig{}, c.queue...)
			var statuses []string
			for range strings.Count(strings.ReplaceAll(c.want, "not yet", "notyet"), " ") + 1 {
				_, status, err := it.element()
				if (status == client.Failed || status == client.Broken) != (err != nil) {
					t.Errorf("status %v with error %v", status, err)
				}
				statuses = append(statuses, status.String())
			}
			if got := strings.Join(statuses, " "); got != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
			it.close()
			<-inner.closed
		})
	}
}

func TestAFinalErrorIsRepeatedAndNeverReadAsTheEnd(t *testing.T) {
	it, inner := open(t, JobConfig{}, answer{status: client.Broken, err: reason.New(reason.ElementPoison, "element 7 kills workers")})
	want := codes.DataLoss
	for range 3 {
		_, status, err := it.block()
		own := reason.From(err)
		if status != client.Broken || own.Reason != reason.ElementPoison || own.Code() != want || !strings.Contains(own.Message, "element 7 kills workers") {
			t.Errorf("got %v, %v (%v), want %v", status, err, own.Code(), want)
		}
		// An error that TensorFlow's ignore_errors() does not skip.
		want = codes.Canceled
	}
	it.close()
	<-inner.closed
}

func TestShapesAreComparedWithTheSpec(t *testing.T) {
	cases := map[string]struct {
		promise *pecanv1.ComponentSpec
		dims    []int64
		leading int
		ok      bool
	}{
		"as promised":                         {component(dtInt64, 2, 3), []int64{2, 3}, 0, true},
		"a size that was left open":           {component(dtInt64, 2, -1), []int64{2, 9}, 0, true},
		"another size":                        {component(dtInt64, 2, 3), []int64{2, 4}, 0, false},
		"elements before the element's shape": {component(dtInt64, 2), []int64{7, 2}, 1, true},
		"a block without its elements":        {component(dtInt64), nil, 1, true},
		"any rank where none was promised":    {&pecanv1.ComponentSpec{Dtype: dtInt64, UnknownRank: true}, []int64{1, 2, 3}, 0, true},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			job := NewJob(JobConfig{Components: []*pecanv1.ComponentSpec{c.promise}})
			err := job.check(row(dtInt64, c.dims...), c.leading)
			if c.ok != (err == nil) || err != nil && !reason.Is(err, reason.ElementSpec) {
				t.Errorf("got %v", err)
			}
		})
	}
}

func TestABrokenSessionEndsOnlyWaits(t *testing.T) {
	var broken error
	it, inner := open(t, JobConfig{Broken: func() error { return broken }}, answer{elements: row(dtInt64), status: client.Ready})
	broken = reason.New(reason.Unavailable, "the dispatcher died")
	if _, status, _ := it.element(); status != client.Ready {
		t.Errorf("an element that is there was kept back: %v", status)
	}
	for range 2 {
		if _, status, err := it.element(); status != client.Broken || !reason.Is(err, reason.Unavailable) {
			t.Errorf("the wait goes on: %v, %v", status, err)
		}
	}
	it.close()
	<-inner.closed
}

func TestLongWaitsAreExplainedLessOften(t *testing.T) {
	var lines []string
	it, inner := open(t, JobConfig{Warn: func(line string) { lines = append(lines, line) }})
	perWarning := int(warnAfter / maxWait)
	for range 8 * perWarning {
		it.element()
	}
	if len(lines) != 4 || !strings.Contains(lines[0], "no element for 2s: no worker is registered") {
		t.Errorf("in 16 s the warnings were %q", lines)
	}
	it.close()
	<-inner.closed
}

func TestSlowElementsAreExplainedLater(t *testing.T) {
	var lines []string
	it, inner := open(t, JobConfig{Warn: func(line string) { lines = append(lines, line) }})
	inner.why, inner.computing = "they are being computed", true
	for range int(computingAfter/maxWait) - 1 {
		it.element()
	}
	if len(lines) != 0 {
		t.Errorf("the warnings were %q", lines)
	}
	it.element()
	if len(lines) != 1 || !strings.Contains(lines[0], "no element for 10s: they are being computed") {
		t.Errorf("after 10 s the warnings were %q", lines)
	}
	it.close()
	<-inner.closed
}

func TestTheLastReferenceClosesTheJob(t *testing.T) {
	closed := make(chan struct{})
	inner := &answers{closed: make(chan struct{})}
	job := NewJob(JobConfig{
		Open:   func() (Iteration, error) { return inner, nil },
		Closed: func() { close(closed) },
	})
	it, err := newIteration(job)
	if err != nil {
		t.Fatal(err)
	}
	handle := job.Handle()
	DropHandle(handle)
	DropHandle(handle)
	select {
	case <-closed:
		t.Fatal("closed while an iteration is open")
	default:
	}
	it.close()
	<-inner.closed
	<-closed
	if _, err := newIteration(job); !reason.Is(err, reason.Closed) {
		t.Errorf("opened a closed job: %v", err)
	}
	if _, err := lookup[*Job](handle); !reason.Is(err, reason.Closed) {
		t.Errorf("found a dropped handle: %v", err)
	}
}

func TestAHandleOfAnotherKindIsRefused(t *testing.T) {
	job := NewJob(JobConfig{})
	handle := job.Handle()
	defer DropHandle(handle)
	if _, err := lookup[*iteration](handle); !reason.Is(err, reason.BadArgument) {
		t.Errorf("a job passed for an iteration: %v", err)
	}
	for _, stale := range []int64{0, -1, 1 << 60} {
		if _, err := lookup[*Job](stale); err == nil {
			t.Errorf("handle %d stands for something", stale)
		}
	}
}

// interrupts returns a function that presses Ctrl-C. The process's own handler does not run by itself.
func interrupts(t *testing.T) (press func()) {
	received := make(chan os.Signal, 1)
	signal.Notify(received, os.Interrupt)
	t.Cleanup(func() { signal.Stop(received) })
	HandleInterrupts()
	return func() {
		t.Helper()
		if err := syscall.Kill(syscall.Getpid(), syscall.SIGINT); err != nil {
			t.Fatal(err)
		}
		<-received
	}
}

// One Python call may request many elements, which arrive one by one.
func TestAnInterruptEndsACallForManyElements(t *testing.T) {
	interrupt := interrupts(t)
	it, inner := open(t, JobConfig{})
	defer it.close()
	interrupt()
	defer AcknowledgeInterrupts()
	for range 5 {
		if _, status, err := it.element(); status == client.Failed && reason.From(err).Reason == reason.Interrupted {
			return
		}
		inner.queue = append(inner.queue, answer{elements: row(dtInt64), status: client.Ready})
		if _, status, err := it.element(); status != client.Ready {
			t.Fatalf("%v %v", status, err)
		}
	}
	t.Error("the call goes on")
}

// A wait ends on Ctrl-C only if the process's own handler has not seen the interrupt. The handler runs between two steps
// of Python, so it cannot run while a wait blocks Python.
func TestAnInterruptEndsAWaitThatBlocksTheSignalHandler(t *testing.T) {
	interrupt := interrupts(t)
	it, _ := open(t, JobConfig{})
	defer it.close()
	waits := func(n int) (ended int) {
		for range n {
			if _, status, err := it.element(); status == client.Failed && reason.From(err).Reason == reason.Interrupted {
				ended++
			} else if status != client.NotYet {
				t.Fatalf("%v %v", status, err)
			}
		}
		return ended
	}
	interrupt()
	AcknowledgeInterrupts()
	if n := waits(5); n != 0 {
		t.Errorf("%d waits ended for an interrupt that was acknowledged before them", n)
	}
	interrupt()
	if n := waits(1); n != 0 {
		t.Error("a wait ended at once, before the handler could acknowledge the interrupt")
	}
	AcknowledgeInterrupts()
	if n := waits(5); n != 0 {
		t.Errorf("%d waits ended for an interrupt that was acknowledged meanwhile", n)
	}
	interrupt()
	if n := waits(5); n != 1 {
		t.Errorf("%d waits ended for an interrupt without an acknowledgement, want 1", n)
	}
	AcknowledgeInterrupts()
	interrupt()
	if n := waits(5); n != 1 {
		t.Errorf("%d waits ended for the next interrupt, want 1", n)
	}
	AcknowledgeInterrupts()
}
