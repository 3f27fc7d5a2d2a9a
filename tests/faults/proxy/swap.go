package main

import (
	"encoding/binary"
	"time"

	"github.com/pecan-ml/pecan/proto/frame"
)

// patience is how long a frame waits for another one to be exchanged with: the sender may be waiting for credit.
const patience = 20 * time.Millisecond

// swapper exchanges frames of the data plane (docs/formats/frame.md) that follow each other on one channel. It follows the frames of a
// connection while there is something to exchange when it begins, and passes bytes as they come else.
type swapper struct {
	// rest is the beginning of a frame that has not come whole.
	rest []byte
	// first is a DATA frame that waits for the next one of its channel.
	first []byte
}

// pass takes bytes that came, which may be none, and gives those that may go on.
func (s *swapper) pass(p *proxy, part []byte, late bool) []byte {
	if s.rest == nil && s.first == nil && !p.swapWanted() {
		return part
	}
	s.rest = append(s.rest, part...)
	var out []byte
	for len(s.rest) >= frame.HeaderSize {
		size := frame.HeaderSize + int(binary.LittleEndian.Uint32(s.rest[32:])) + int(binary.LittleEndian.Uint64(s.rest[40:]))
		if len(s.rest) < size {
			break
		}
		out = append(out, s.take(p, append([]byte(nil), s.rest[:size]...))...)
		s.rest = s.rest[size:]
	}
	if late {
		out, s.first = append(out, s.first...), nil
	}
	return out
}

// take gives what may go on now that a whole frame has come.
func (s *swapper) take(p *proxy, whole []byte) []byte {
	data, channel := frame.Type(whole[5]) == frame.Data, binary.LittleEndian.Uint32(whole[8:])
	switch {
	case s.first == nil && data && p.swapWanted():
		s.first = whole
		return nil
	case s.first == nil || channel != binary.LittleEndian.Uint32(s.first[8:]):
		return whole
	}
	// The next one of the channel, or its end.
	out := append(whole, s.first...)
	s.first = nil
	p.count(func() { p.Swapped++; p.swaps-- })
	return out
}

func (p *proxy) swapWanted() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.swaps > 0
}
