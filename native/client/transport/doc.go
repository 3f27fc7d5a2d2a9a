// Package transport has the client's data connections to workers.
//
// Workers (workers.go) finds or creates one Conn (conn.go) for each worker address and protocol (protocol.go). dial.go
// connects over the Unix socket of a worker on this host or over TCP, and does the handshake. Conn.Open opens a Channel
// (channel.go) for one stream. reader.go reads frames and checks them, and passes entries to the channel's Receiver.
// unixlink.go takes descriptors from a Unix socket, and shared.go maps their slots of shared memory. checksum.go checks
// checksums. write.go sends queued frames and pings.
//
// A reader's budget bounds the payloads, and not the read buffers of connections. Those take 1 MiB for 16 connections, 3.7
// MiB for 256 and 6.7 MiB for 1,000 (readBufferOf).
//
// A Conn connects once. When it fails, each Receiver gets the error, and the next Connect creates a new Conn.
//
// Do not decide here which elements are accepted, or which worker has a stream: the Receiver does, in native/client/epoch.
//
// Locks: a Receiver may call Channel and Conn with its own lock held. So Conn.mu and Workers.mu are taken after it, and no
// method of a Receiver is called under them. Workers.mu is taken before Conn.mu. Do not block under either.
package transport
