package dispatcher

import (
	"context"
	"sync"
	"time"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
)

// statusRest is how many times longer than a status took to make the next one waits: all decisions wait meanwhile. maxStatusRest
// bounds that time.
const (
	statusRest    = 4
	maxStatusRest = time.Second
)

// statusCalls makes one status at a time. Calls that come before it begins share it, so that no number of calls stops the
// dispatcher.
type statusCalls struct {
	// making is held while a status is made. until is the end of the rest after it.
	making sync.Mutex
	until  time.Time

	// mu guards next, which has not begun; nil if nobody waits for one. made counts statuses.
	mu   sync.Mutex
	next *statusCall
	made int
}

type statusCall struct {
	status *pecanv1.StatusResponse
	// shared counts the calls that wait for it. done is closed when status is there.
	shared int
	done   chan struct{}
}

// Status implements the service.
func (d *Dispatcher) Status(context.Context, *pecanv1.StatusRequest) (*pecanv1.StatusResponse, error) {
	return d.status(), nil
}

// status returns what an operator sees. Several calls may share it, so nobody may change it.
func (d *Dispatcher) status() *pecanv1.StatusResponse {
	s := &d.statuses
	s.mu.Lock()
	call := s.next
	if call == nil {
		call = &statusCall{done: make(chan struct{})}
		s.next = call
		go d.makeStatus(call)
	}
	call.shared++
	s.mu.Unlock()
	<-call.done
	return call.status
}

func (d *Dispatcher) makeStatus(call *statusCall) {
	s := &d.statuses
	s.making.Lock()
	defer s.making.Unlock()
	time.Sleep(time.Until(s.until))
	s.mu.Lock()
	s.next = nil
	s.made++
	s.mu.Unlock()
	begun := time.Now()
	call.status = d.statusNow()
	s.until = time.Now().Add(min(statusRest*time.Since(begun), maxStatusRest))
	close(call.done)
}

func (d *Dispatcher) statusNow() *pecanv1.StatusResponse {
	now := d.deps.Clock.Now()
	d.mu.Lock()
	status := d.core.Status(d.diskGate.coreTime(now))
	// Parts of the answer belong to the core's state, so the answer is copied before the core continues.
	status = clone(status)
	d.mu.Unlock()
	status.Version, status.WorkDir, status.UptimeS = d.cfg.Version, d.deps.Store.Dir(), (now - d.started).Seconds()
	for _, job := range status.Jobs {
		d.addPrices(job.Fleet, job.Options.GetPlacement())
	}
	return status
}
