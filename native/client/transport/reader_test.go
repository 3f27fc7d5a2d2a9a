package transport

import "testing"

// A trainer that reads from hundreds of workers needs few MiB for the read buffers of its connections.
func TestReadBuffersShrinkAsConnectionsGrow(t *testing.T) {
	const kib, mib = 1 << 10, 1 << 20
	for _, c := range []struct {
		connections, size int
		// all is the most that this many connections have, made one after the other.
		all int
	}{
		{0, 64 * kib, 0}, {1, 64 * kib, 64 * kib}, {16, 64 * kib, mib}, {17, mib / 17, mib + mib/17}, {64, 16 * kib, 5 * mib / 2},
		{256, 4 * kib, 15 * mib / 4}, {257, 4 * kib, 15*mib/4 + 4*kib}, {1000, 4 * kib, 27 * mib / 4}, {100_000, 4 * kib, 400 * mib},
	} {
		if size := readBufferOf(c.connections); size != c.size {
			t.Errorf("%d connections: the newest has a buffer of %d bytes, not %d", c.connections, size, c.size)
		}
		all := 0
		for n := range c.connections {
			all += readBufferOf(n + 1)
		}
		if all > c.all {
			t.Errorf("%d connections: the buffers have %d bytes, more than %d", c.connections, all, c.all)
		}
	}
}
