// Package simnet is a network in memory on which packets are late, lost, cut and held back at a test's command. It lives on the
// clock of a testing/synctest bubble. What it knows of TCP is what programs see of it: bytes arrive in order or not at all; what a
// dead network swallowed comes when it heals; a process that ends resets its connections, a host without power says nothing.
package simnet

import (
	"math/rand/v2"
	"sync"
	"time"
)

// Fault is a kind of thing that goes wrong.
type Fault string

// The kinds of faults.
const (
	Loss     Fault = "loss"
	Delay    Fault = "delay"
	Cut      Fault = "cut"
	Kill     Fault = "kill"
	PowerOff Fault = "power off"
	Pause    Fault = "pause"
	Flip     Fault = "flip"
)

// Net is the network of one cluster.
type Net struct {
	mu    sync.Mutex
	rng   *rand.Rand
	hosts map[string]*Host
	links map[[2]string]*link
	hits  map[Fault]int
	// changed rings when a host or a link changed: everybody looks again.
	changed *bell
}

// bell wakes all who wait; the lock of the network guards it.
type bell struct{ heard chan struct{} }

func newBell() *bell { return &bell{make(chan struct{})} }

func (b *bell) ring() {
	close(b.heard)
	b.heard = make(chan struct{})
}

// link is one direction between two hosts.
type link struct {
	lost  bool
	delay time.Duration
	// cutAfter so many more bytes the connection that passes them is reset, -1: never.
	cutAfter int64
	// flipAfter so many more bytes a bit of one is wrong, -1: never.
	flipAfter int64
	// passed counts the bytes that were ever sent.
	passed int64
	last   time.Time
}

// New makes a network whose latencies are drawn from rng.
func New(rng *rand.Rand) *Net {
	return &Net{rng: rng, hosts: map[string]*Host{}, links: map[[2]string]*link{}, hits: map[Fault]int{}, changed: newBell()}
}

// Hits tells how often a fault of each kind has really hurt somebody: held a packet back, broken a connection.
func (n *Net) Hits() map[Fault]int {
	n.mu.Lock()
	defer n.mu.Unlock()
	hits := map[Fault]int{}
	for fault, count := range n.hits {
		hits[fault] = count
	}
	return hits
}

// Open counts the ends of connections that nobody has closed.
func (n *Net) Open() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	open := 0
	for _, host := range n.hosts {
		open += len(host.conns)
	}
	return open
}

// stir wakes everybody. n.mu is held.
func (n *Net) stir() { n.changed.ring() }

func (n *Net) link(from, to string) *link {
	key := [2]string{from, to}
	if n.links[key] == nil {
		n.links[key] = &link{cutAfter: -1, flipAfter: -1}
	}
	return n.links[key]
}

// Lose lets nothing through from one host to another, or lets everything through again: also what was sent meanwhile.
func (n *Net) Lose(from, to string, on bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.link(from, to).lost = on
	n.stir()
}

// Split is Lose in both directions.
func (n *Net) Split(a, b string, on bool) {
	n.Lose(a, b, on)
	n.Lose(b, a, on)
}

// Heal ends all that is wrong with links.
func (n *Net) Heal() {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, l := range n.links {
		l.lost, l.delay, l.cutAfter, l.flipAfter = false, 0, -1, -1
	}
	n.stir()
}

// Slow adds a delay to all that goes from one host to another.
func (n *Net) Slow(from, to string, by time.Duration) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.link(from, to).delay = by
}

// CutAfter resets the connection that sends the byte after the next so many from one host to another, once.
func (n *Net) CutAfter(from, to string, bytes int64) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.link(from, to).cutAfter = bytes
}

// FlipAfter changes one bit of the byte after the next so many from one host to another, once, behind the back of TCP's checksum.
func (n *Net) FlipAfter(from, to string, bytes int64) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.link(from, to).flipAfter = bytes
}

// Passed is how many bytes were sent from one host to another.
func (n *Net) Passed(from, to string) int64 {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.link(from, to).passed
}

// carries tells whether a packet arrives. n.mu is held.
func (n *Net) carries(from, to string) bool {
	return !n.link(from, to).lost && !n.dark(from) && !n.dark(to)
}

func (n *Net) dark(host string) bool {
	h := n.hosts[host]
	return h != nil && h.state == dark
}

// hurt counts a fault that keeps a packet from arriving. n.mu is held.
func (n *Net) hurt(from, to string) {
	if n.dark(from) || n.dark(to) {
		n.hits[PowerOff]++
		return
	}
	n.hits[Loss]++
}

// arrival is when a packet that is sent now arrives, after all that were sent before it. n.mu is held.
func (n *Net) arrival(from, to string) time.Time {
	l := n.link(from, to)
	if l.delay > 0 {
		n.hits[Delay]++
	}
	at := time.Now().Add(l.delay + 100*time.Microsecond + time.Duration(n.rng.Int64N(int64(time.Millisecond))))
	if at.Before(l.last) {
		at = l.last
	}
	l.last = at
	return at
}
