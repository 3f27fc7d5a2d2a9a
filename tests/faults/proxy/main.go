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

// counters count what the proxy did.
type counters struct {
	Connections int   `json:"connections"`
	Up          int64 `json:"up"`
	Down        int64 `json:"down"`
	// HeldUp and HeldDown count the bytes that the proxy received and did not forward at once.
	HeldUp   int64 `json:"held_up"`
	HeldDown int64 `json:"held_down"`
	Refused  int   `json:"refused"`
	Cut      int   `json:"cut"`
	Swapped  int   `json:"swapped"`
}

type proxy struct {
	mu               sync.Mutex
	changed          *sync.Cond
	to               string
	holdUp, holdDown bool
	refuse           bool
	cuts             []int64
	bytesPerSecond   int64
	swaps            int
	links            map[*link]bool
	counters
}

// link is one connection through the proxy.
type link struct {
	client, server *net.TCPConn
	// cutAfter is the number of bytes down after which the proxy resets the link; -1 means never.
	cutAfter int64
}

func (l *link) reset() {
	for _, end := range []*net.TCPConn{l.client, l.server} {
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
		if err := p.execute(strings.Fields(lines.Text())); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		p.mu.Lock()
		answer, _ := json.Marshal(p.counters)
		p.mu.Unlock()
		fmt.Println(string(answer))
	}
}

func (p *proxy) execute(fields []string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	defer p.changed.Broadcast()
	switch {
	case len(fields) == 2 && fields[0] == "to":
		p.to = fields[1]
	case len(fields) == 1 && fields[0] == "forward":
		p.holdUp, p.holdDown, p.refuse, p.cuts, p.bytesPerSecond = false, false, false, nil, 0
	case len(fields) == 2 && fields[0] == "hold":
		p.holdUp, p.holdDown = fields[1] != "down", fields[1] != "up"
	case len(fields) == 1 && fields[0] == "refuse":
		p.refuse = true
	case len(fields) == 1 && fields[0] == "cut":
		for l := range p.links {
			l.reset()
			p.Cut++
		}
	case len(fields) >= 2 && fields[0] == "cut-after":
		for _, word := range fields[1:] {
			n, err := strconv.ParseInt(word, 10, 64)
			if err != nil {
				return err
			}
			p.cuts = append(p.cuts, n)
		}
	case len(fields) == 2 && (fields[0] == "slow" || fields[0] == "swap"):
		n, err := strconv.ParseInt(fields[1], 10, 64)
		if err != nil {
			return err
		}
		if fields[0] == "slow" {
			p.bytesPerSecond = n
		} else {
			p.swaps = int(n)
		}
	case len(fields) == 1 && fields[0] == "count":
	default:
		return fmt.Errorf("unknown command %q", fields)
	}
	return nil
}

func (p *proxy) accept(listener net.Listener) {
	for {
		client, err := listener.Accept()
		if err != nil {
			return
		}
		go p.serve(client.(*net.TCPConn))
	}
}

func (p *proxy) serve(client *net.TCPConn) {
	l := &link{client: client, cutAfter: -1}
	p.mu.Lock()
	to, refuse := p.to, p.refuse
	if refuse {
		p.Refused++
	} else if len(p.cuts) > 0 {
		l.cutAfter, p.cuts = p.cuts[0], p.cuts[1:]
	}
	p.mu.Unlock()
	server, err := net.Dial("tcp", to)
	if refuse || err != nil {
		if err == nil {
			_ = server.Close()
		}
		_ = client.SetLinger(0)
		_ = client.Close()
		return
	}
	l.server = server.(*net.TCPConn)
	p.mu.Lock()
	p.Connections++
	p.links[l] = true
	p.mu.Unlock()
	var both sync.WaitGroup
	both.Go(func() { p.forward(l, l.client, l.server, true) })
	both.Go(func() { p.forward(l, l.server, l.client, false) })
	both.Wait()
	l.reset()
	p.mu.Lock()
	delete(p.links, l)
	p.mu.Unlock()
}

// forward copies bytes in one direction until an end closes. It then closes only the writing side of the other end, so that a
// half-closed connection stays half-closed.
func (p *proxy) forward(l *link, from, to *net.TCPConn, up bool) {
	buffer := make([]byte, 64<<10)
	total := int64(0)
	swapper := &swapper{}
	for {
		deadline := time.Time{}
		if swapper.first != nil {
			deadline = time.Now().Add(swapTimeout)
		}
		_ = from.SetReadDeadline(deadline)
		n, err := from.Read(buffer)
		late := errors.Is(err, os.ErrDeadlineExceeded)
		if late {
			err = nil
		}
		part := p.wait(buffer[:n], up)
		if !up {
			part = swapper.filter(p, part, late || err != nil)
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

// wait returns part when the proxy may forward it.
func (p *proxy) wait(part []byte, up bool) []byte {
	p.mu.Lock()
	held := func() bool { return up && p.holdUp || !up && p.holdDown }
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
