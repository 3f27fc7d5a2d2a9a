// Package serve is the data plane of a worker: it sends ready elements to readers (docs/formats/frame.md).
//
// A Server listens on TCP, and on an abstract Unix socket for readers of this host, which take elements in shared memory.
// Each connection has one goroutine that reads frames and one that writes them. The writing goroutine takes entries from
// its channels' windows round-robin, and gathers their frames into one write.
//
// server.go listens and accepts. gate.go bounds connections. conn.go reads a reader's frames. channel.go is one reader of
// one window. send.go runs the goroutine that writes: it gathers entries, makes frames and sends them. slots.go manages
// shared memory. compress.go decides about compression. ratelog.go limits the rate of warnings about peers.
//
// A peer is not trusted: every number it sends is checked, and a peer that breaks a limit loses its connection. conn.mu is
// taken after a window's lock. A write batch (writeBatch) holds a reference to each entry until the entry's frames are
// written. Do not use the memory of an entry after that.
//
// Do not produce, drop or reorder elements here: the window gives them in the order of their indexes. A change of the bytes
// belongs to proto/frame, which has the version.
package serve
