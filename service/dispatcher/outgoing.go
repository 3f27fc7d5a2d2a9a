package dispatcher

import (
	"sync"
	"time"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/proto/reason"
)

// outgoing is the common part of a commandQueue and an updateQueue: an end, and a way to wake the sender.
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

// updateQueue holds the updates for one watch in order.
type updateQueue struct {
	outgoing
	updates []*pecanv1.EpochUpdate
	// open is the number of open streams after the newest update.
	open int
}

func newUpdateQueue() *updateQueue { return &updateQueue{outgoing: newOutgoing()} }

func (q *updateQueue) push(update *pecanv1.EpochUpdate, open int) {
	q.change(func() {
		q.open = open
		q.updates = append(q.updates, update)
		if len(q.updates) > maxPendingUpdates {
			q.updates = mergeUpdates(q.updates)
		}
	})
}

// pause returns how long an update may wait for others.
func (q *updateQueue) pause() time.Duration {
	q.mu.Lock()
	defer q.mu.Unlock()
	return min(max(minUpdatePause, time.Duration(q.open-fewStreams)*pausePerStream), maxUpdatePause)
}

// take returns the updates to send now. Differences that waited are merged.
func (q *updateQueue) take() (updates []*pecanv1.EpochUpdate, ended bool, err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	updates, q.updates = mergeUpdates(q.updates), nil
	return updates, q.ended, q.err
}

// These are the bounds of the time between two updates of a watch. If the client reads few streams, it
// must soon learn of the next ones. The time grows with further streams.
const (
	minUpdatePause = time.Millisecond
	maxUpdatePause = 50 * time.Millisecond
	fewStreams     = 16
	pausePerStream = time.Millisecond
)

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
