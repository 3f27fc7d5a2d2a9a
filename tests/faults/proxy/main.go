// Command proxy stands between two processes of a fault scenario and does to their TCP connections what a network may do. It
// prints the address it listens on, takes one command per line from standard input and answers each with its counters as JSON:
//
//	to HOST:PORT            where connections go from now on
//	pass                    forward everything (as at the start)
//	hold up|down|both       forward nothing from the dialing side, to it, or both ways; nothing is closed, and new connections
//	                        are taken: what a lost route looks like. What is held goes on with the next pass.
//	refuse                  reset new connections
//	cut                     reset all connections
//	cut-after N [N...]      reset each of the next connections when so many bytes have come down on it
//	slow BYTES              forward so many bytes per second and direction; 0: as many as come
//	swap N                  exchange two frames of the data plane that follow each other on one channel, N times
//	count                   nothing but the counters
package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"
)

// counters are what really happened.
type counters struct {
	Connections int   `json:"connections"`
	Up          int64 `json:"up"`
	Down        int64 `json:"down"`
	// HeldUp and HeldDown are bytes that had come and were not forwarded for a while.
	HeldUp   int64 `json:"held_up"`
	HeldDown int64 `json:"held_down"`
	Refused  int   `json:"refused"`
	Cut      int   `json:"cut"`
	Swapped  int   `json:"swapped"`
}

type proxy struct {
	mu             sync.Mutex
	changed        *sync.Cond
	to             string
	holdUp, hold   bool
	refuse         bool
	cuts           []int64
	bytesPerSecond int64
	swaps          int
	links          map[*link]bool
	counters
}

// link is one connection through the proxy.
type link struct {
	near, far *net.TCPConn
	// cutAfter bytes down it is reset; -1: never.
	cutAfter int64
}

func (l *link) reset() {
	for _, end := range []*net.TCPConn{l.near, l.far} {
		_ = end.SetLinger(0)
		_ = end.Close()
	}
}

func main() {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	p := &proxy{links: map[*link]bool{}}
	p.changed = sync.NewCond(&p.mu)
	fmt.Println("listening on", listener.Addr())
	go p.accept(listener)
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		if err := p.obey(strings.Fields(lines.Text())); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		p.mu.Lock()
		answer, _ := json.Marshal(p.counters)
		p.mu.Unlock()
		fmt.Println(string(answer))
	}
}

func (p *proxy) obey(words []string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	defer p.changed.Broadcast()
	switch {
	case len(words) == 2 && words[0] == "to":
		p.to = words[1]
	case len(words) == 1 && words[0] == "pass":
		p.holdUp, p.hold, p.refuse, p.cuts, p.bytesPerSecond = false, false, false, nil, 0
	case len(words) == 2 && words[0] == "hold":
		p.holdUp, p.hold = words[1] != "down", words[1] != "up"
	case len(words) == 1 && words[0] == "refuse":
		p.refuse = true
	case len(words) == 1 && words[0] == "cut":
		for l := range p.links {
			l.reset()
			p.Cut++
		}
	case len(words) >= 2 && words[0] == "cut-after":
		for _, word := range words[1:] {
			n, err := strconv.ParseInt(word, 10, 64)
			if err != nil {
				return err
			}
			p.cuts = append(p.cuts, n)
		}
	case len(words) == 2 && (words[0] == "slow" || words[0] == "swap"):
		n, err := strconv.ParseInt(words[1], 10, 64)
		if err != nil {
			return err
		}
		if words[0] == "slow" {
			p.bytesPerSecond = n
		} else {
			p.swaps = int(n)
		}
	case len(words) == 1 && words[0] == "count":
	default:
		return fmt.Errorf("what is %q?", words)
	}
	return nil
}

func (p *proxy) accept(listener net.Listener) {
	for {
		near, err := listener.Accept()
		if err != nil {
			return
		}
		go p.serve(near.(*net.TCPConn))
	}
}

func (p *proxy) serve(near *net.TCPConn) {
	l := &link{near: near, cutAfter: -1}
	p.mu.Lock()
	to, refuse := p.to, p.refuse
	if refuse {
		p.Refused++
	} else if len(p.cuts) > 0 {
		l.cutAfter, p.cuts = p.cuts[0], p.cuts[1:]
	}
	p.mu.Unlock()
	far, err := net.Dial("tcp", to)
	if refuse || err != nil {
		if err == nil {
			_ = far.Close()
		}
		_ = near.SetLinger(0)
		_ = near.Close()
		return
	}
	l.far = far.(*net.TCPConn)
	p.mu.Lock()
	p.Connections++
	p.links[l] = true
	p.mu.Unlock()
	var both sync.WaitGroup
	both.Go(func() { p.forward(l, l.near, l.far, true) })
	both.Go(func() { p.forward(l, l.far, l.near, false) })
	both.Wait()
	l.reset()
	p.mu.Lock()
	delete(p.links, l)
	p.mu.Unlock()
}

// forward moves bytes one way until an end closes. A closed end closes the other one's writing side: half-closed stays so.
func (p *proxy) forward(l *link, from, to *net.TCPConn, up bool) {
	buffer := make([]byte, 64<<10)
	total := int64(0)
	swapper := &swapper{}
	for {
		deadline := time.Time{}
		if swapper.first != nil {
			deadline = time.Now().Add(patience)
		}
		_ = from.SetReadDeadline(deadline)
		n, err := from.Read(buffer)
		late := errors.Is(err, os.ErrDeadlineExceeded)
		if late {
			err = nil
		}
		part := p.wait(buffer[:n], up)
		if !up {
			part = swapper.pass(p, part, late || err != nil)
			if l.cutAfter >= 0 && total+int64(len(part)) >= l.cutAfter {
				_, _ = to.Write(part[:l.cutAfter-total])
				p.count(func() { p.Cut++; p.Down += l.cutAfter - total })
				l.reset()
				return
			}
		}
		if _, failed := to.Write(part); failed != nil {
			l.reset()
			return
		}
		total += int64(len(part))
		p.count(func() {
			if up {
				p.Up += int64(len(part))
			} else {
				p.Down += int64(len(part))
			}
		})
		if err != nil {
			_ = to.CloseWrite()
			return
		}
	}
}

func (p *proxy) count(do func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	do()
}

// wait gives a part when it may go on.
func (p *proxy) wait(part []byte, up bool) []byte {
	p.mu.Lock()
	held := func() bool { return up && p.holdUp || !up && p.hold }
	if held() && len(part) > 0 {
		if up {
			p.HeldUp += int64(len(part))
		} else {
			p.HeldDown += int64(len(part))
		}
	}
	for held() {
		p.changed.Wait()
	}
	rate := p.bytesPerSecond
	p.mu.Unlock()
	if rate > 0 {
		time.Sleep(time.Duration(len(part)) * time.Second / time.Duration(rate))
	}
	return part
}
