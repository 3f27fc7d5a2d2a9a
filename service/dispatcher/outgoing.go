package dispatcher

import (
	"sync"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/proto/reason"
)

// commandQueue holds the commands to one worker in order.
type commandQueue struct {
	mu       sync.Mutex
	commands []*pecanv1.WorkerCommand
	ended    bool
	err      error
	// wake has a token when something changed.
	wake chan struct{}
}

func newCommandQueue() *commandQueue { return &commandQueue{wake: make(chan struct{}, 1)} }

func (s *commandQueue) push(command *pecanv1.WorkerCommand) {
	s.mu.Lock()
	s.commands = append(s.commands, command)
	s.mu.Unlock()
	signal(s.wake)
}

func (s *commandQueue) end(err *reason.Error) {
	s.mu.Lock()
	s.ended = true
	if err != nil {
		s.err = err
	}
	s.mu.Unlock()
	signal(s.wake)
}

func (s *commandQueue) take() (commands []*pecanv1.WorkerCommand, ended bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	commands, s.commands = s.commands, nil
	return commands, s.ended, s.err
}

// updateSlot holds the newest snapshot for one watch.
type updateSlot struct {
	mu     sync.Mutex
	newest *pecanv1.EpochUpdate
	ended  bool
	err    error
	wake   chan struct{}
}

func newUpdateSlot() *updateSlot { return &updateSlot{wake: make(chan struct{}, 1)} }

func (w *updateSlot) push(update *pecanv1.EpochUpdate) {
	w.mu.Lock()
	w.newest = update
	w.mu.Unlock()
	signal(w.wake)
}

func (w *updateSlot) end(err *reason.Error) {
	w.mu.Lock()
	w.ended = true
	if err != nil {
		w.err = err
	}
	w.mu.Unlock()
	signal(w.wake)
}

func (w *updateSlot) take() (update *pecanv1.EpochUpdate, ended bool, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	update, w.newest = w.newest, nil
	return update, w.ended, w.err
}

func signal(wake chan struct{}) {
	select {
	case wake <- struct{}{}:
	default:
	}
}
