package serve

import (
	"net"
	"time"

	"github.com/golang/snappy"
	"github.com/pecan-ml/pecan/proto/frame"
	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/worker/payload"
)

// These bounds decide when COMPRESSION_AUTO compresses. snappy compresses about 1.2 GB/s per core and decompresses a
// little faster. Compression pays on a link that is clearly slower, for payloads that clearly shrink.
const (
	slowLink     = 300e6
	sampleBytes  = 64 << 10
	sampleShrink = 0.75
	// A write of this size takes long enough to be timed. The sums follow the last few writes.
	timedBytes = 256 << 10
	newWeight  = 0.2
	// maxSnappy is the largest payload that is compressed. The format's limit is 4 GiB, and compression needs
	// the memory twice.
	maxSnappy = 1 << 30
)

// link holds what a connection knows about its own speed.
type link struct {
	// local is set if the peer is on this host, where compression never pays.
	local bool
	// Weighted sums over the timed writes, both 0 before the first. Their quotient is the speed. The speeds
	// of single writes have no useful mean: most writes only fill the kernel's buffer, and one waits for all.
	bytes, seconds float64
}

func newLink(nc net.Conn) link {
	local, ok := nc.LocalAddr().(*net.TCPAddr)
	remote, ok2 := nc.RemoteAddr().(*net.TCPAddr)
	return link{local: !ok || !ok2 || remote.IP.IsLoopback() || remote.IP.Equal(local.IP)}
}

// wrote records the duration of a write.
func (l *link) wrote(bytes int, took time.Duration) {
	if bytes < timedBytes || took <= 0 {
		return
	}
	l.bytes += newWeight * (float64(bytes) - l.bytes)
	l.seconds += newWeight * (took.Seconds() - l.seconds)
}

// isSlow reports whether the timed writes were slower than slowLink. It is false before the first one.
func (l *link) isSlow() bool { return l.bytes < slowLink*l.seconds }

// compresses reports whether a payload is worth compressing on this link.
func (l *link) compresses(how pecanv1.Compression, p payload.Parts) bool {
	if p.Raw == 0 || p.Raw > maxSnappy {
		return false
	}
	switch how {
	case pecanv1.Compression_COMPRESSION_SNAPPY:
		return true
	case pecanv1.Compression_COMPRESSION_AUTO, pecanv1.Compression_COMPRESSION_UNSPECIFIED:
		return !l.local && l.isSlow() && shrinks(p)
	}
	return false
}

// shrinks tries a piece from the middle of the largest buffer, because headers and padding are not
// representative.
func shrinks(p payload.Parts) bool {
	var largest []byte
	for _, buffer := range p.Buffers {
		if len(buffer) > len(largest) {
			largest = buffer
		}
	}
	begin := max(0, len(largest)/2-sampleBytes/2)
	piece := largest[begin:min(len(largest), begin+sampleBytes)]
	return float64(len(snappy.Encode(nil, piece))) < sampleShrink*float64(len(piece))
}

// compress replaces the payload by one snappy block if that is shorter.
func compress(h *frame.Header, p *payload.Parts) {
	whole := make([]byte, 0, p.Raw)
	for _, buffer := range p.Buffers {
		whole = append(whole, buffer...)
	}
	block := snappy.Encode(nil, whole)
	if len(block) >= len(whole) {
		return
	}
	h.Flags |= frame.Snappy
	h.PayloadLen = uint64(len(block))
	p.Buffers = [][]byte{block}
}
