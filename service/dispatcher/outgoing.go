package dispatcher

import (
	"sync"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/proto/reason"
)

// outgoing is what a commandQueue and an updateSlot have in common: an end, and a way to wake the sender.
type outgoing struct {
	mu    sync.Mutex
	ended bool
	err   error
	// wake has a token when something changed.
	wake chan struct{}
}

func newOutgoing() outgoing { return outgoing{wake: make(chan struct{}, 1)} }

// change runs f under the lock, and wakes the sender.
func (o *outgoing) change(f func()) {
	o.mu.Lock()
	f()
	o.mu.Unlock()
	select {
	case o.wake <- struct{}{}:
	default:
	}
}

func (o *outgoing) end(err *reason.Error) {
	o.change(func() {
		o.ended = true
		if err != nil {
			o.err = err
		}
	})
}

// commandQueue holds the commands to one worker in order.
type commandQueue struct {
	outgoing
	commands []*pecanv1.WorkerCommand
}

func newCommandQueue() *commandQueue { return &commandQueue{outgoing: newOutgoing()} }

func (q *commandQueue) push(command *pecanv1.WorkerCommand) {
	q.change(func() { q.commands = append(q.commands, command) })
}

func (q *commandQueue) take() (commands []*pecanv1.WorkerCommand, ended bool, err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	commands, q.commands = q.commands, nil
	return commands, q.ended, q.err
}

// updateSlot holds the newest snapshot for one watch.
type updateSlot struct {
	outgoing
	newest *pecanv1.EpochUpdate
}

func newUpdateSlot() *updateSlot { return &updateSlot{outgoing: newOutgoing()} }

func (s *updateSlot) push(update *pecanv1.EpochUpdate) { s.change(func() { s.newest = update }) }

func (s *updateSlot) take() (update *pecanv1.EpochUpdate, ended bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	update, s.newest = s.newest, nil
	return update, s.ended, s.err
}

// connect adds a peer under a new id. The map is one of the two that connectedMu guards.
func connect[ID ~uint64, Peer any](d *Dispatcher, peers map[ID]*Peer, peer *Peer) ID {
	d.connectedMu.Lock()
	defer d.connectedMu.Unlock()
	d.nextID++
	id := ID(d.nextID)
	peers[id] = peer
	return id
}

// connected returns the connected peer with this id, nil if there is none.
func connected[ID ~uint64, Peer any](d *Dispatcher, peers map[ID]*Peer, id ID) *Peer {
	d.connectedMu.Lock()
	defer d.connectedMu.Unlock()
	return peers[id]
}

// disconnect removes the peer with this id.
func disconnect[ID ~uint64, Peer any](d *Dispatcher, peers map[ID]*Peer, id ID) {
	d.connectedMu.Lock()
	defer d.connectedMu.Unlock()
	delete(peers, id)
}
