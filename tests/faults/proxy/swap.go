package main

import (
	"encoding/binary"
	"time"

	"github.com/pecan-ml/pecan/proto/frame"
)

// swapTimeout is how long a frame waits for a second frame. The wait is short because the sender may be waiting for credit.
const swapTimeout = 20 * time.Millisecond

// swapper exchanges consecutive data plane frames of one channel (docs/formats/frame.md). It parses frames only if swaps
// are requested when a connection starts. Otherwise it forwards bytes unparsed.
type swapper struct {
	// rest is the start of an incomplete frame.
	rest []byte
	// first is a DATA frame that waits for the next frame of its channel.
	first []byte
}

// filter adds received bytes, possibly none, and returns the bytes to forward.
func (s *swapper) filter(p *proxy, part []byte, late bool) []byte {
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
		out = append(out, s.next(p, append([]byte(nil), s.rest[:size]...))...)
		s.rest = s.rest[size:]
	}
	if late {
		out, s.first = append(out, s.first...), nil
	}
	return out
}

// next adds a complete frame, and returns the bytes to forward.
func (s *swapper) next(p *proxy, whole []byte) []byte {
	data, channel := frame.Type(whole[5]) == frame.Data, binary.LittleEndian.Uint32(whole[8:])
	switch {
	case s.first == nil && data && p.swapWanted():
		s.first = whole
		return nil
	case s.first == nil || channel != binary.LittleEndian.Uint32(s.first[8:]):
		return whole
	}
	// The frame is the next frame of the channel, or the channel's end.
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
