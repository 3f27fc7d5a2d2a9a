package simnet

import (
	"math/rand/v2"
	"sync"
	"time"
)

// Fault is a kind of fault.
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
	// changed rings when a host or a link changed. All waiters check again.
	changed *bell
}

// bell wakes all waiters. The lock of the network guards it.
type bell struct{ rung chan struct{} }

func newBell() *bell { return &bell{make(chan struct{})} }

func (b *bell) ring() {
	close(b.rung)
	b.rung = make(chan struct{})
}

// link is one direction between two hosts.
type link struct {
	lost  bool
	delay time.Duration
	// cutAfter is the number of bytes after which the connection that sends the next byte is reset; -1 for never.
	cutAfter int64
	// flipAfter is the number of bytes after which one bit of the next byte is flipped; -1 for never.
	flipAfter int64
	// passed counts all sent bytes.
	passed int64
	last   time.Time
}

// New makes a network that draws its latencies from rng.
func New(rng *rand.Rand) *Net {
	return &Net{rng: rng, hosts: map[string]*Host{}, links: map[[2]string]*link{}, hits: map[Fault]int{}, changed: newBell()}
}

// Hits counts the faults of each kind that had an effect: they delayed a packet or broke a connection.
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

// stir wakes all waiters. The caller holds n.mu.
func (n *Net) stir() { n.changed.ring() }

func (n *Net) link(from, to string) *link {
	key := [2]string{from, to}
	if n.links[key] == nil {
		n.links[key] = &link{cutAfter: -1, flipAfter: -1}
	}
	return n.links[key]
}

// Lose stops all packets from one host to another, or lets them through again with all that was sent meanwhile.
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

// Heal ends all faults of links.
func (n *Net) Heal() {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, l := range n.links {
		l.lost, l.delay, l.cutAfter, l.flipAfter = false, 0, -1, -1
	}
	n.stir()
}

// Slow adds a delay to all packets from one host to another.
func (n *Net) Slow(from, to string, by time.Duration) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.link(from, to).delay = by
}

// CutAfter resets, once, the connection that sends the byte which follows the next bytes from one host to another.
func (n *Net) CutAfter(from, to string, bytes int64) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.link(from, to).cutAfter = bytes
}

// FlipAfter flips, once, one bit of the byte which follows the next bytes from one host to another. TCP's checksum
// does not notice.
func (n *Net) FlipAfter(from, to string, bytes int64) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.link(from, to).flipAfter = bytes
}

// Passed counts the bytes sent from one host to another.
func (n *Net) Passed(from, to string) int64 {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.link(from, to).passed
}

// carries reports whether a packet arrives. The caller holds n.mu.
func (n *Net) carries(from, to string) bool {
	return !n.link(from, to).lost && !n.dark(from) && !n.dark(to)
}

func (n *Net) dark(host string) bool {
	h := n.hosts[host]
	return h != nil && h.state == dark
}

// countFault counts a fault that stops a packet. The caller holds n.mu.
func (n *Net) countFault(from, to string) {
	if n.dark(from) || n.dark(to) {
		n.hits[PowerOff]++
		return
	}
	n.hits[Loss]++
}

// arrival returns when a packet that is sent now arrives, after all earlier ones. The caller holds n.mu.
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
