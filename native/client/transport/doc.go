// Package transport has the client's data connections to workers.
//
// Workers finds or creates one Conn for each worker address and protocol. dial.go connects over the Unix socket of a worker on this host or
// over TCP, and does the handshake. Conn.Open opens a Channel for one stream. reader.go reads frames and passes chunks to the channel's
// Receiver, payload.go reads payloads, shared.go maps slots of shared memory, check.go checks lengths and checksums, write.go sends queued
// frames and pings.
//
// A Conn connects once. When it fails, each Receiver gets the error, and the next Connect creates a new Conn. The Receiver decides which
// elements it accepts, never the connection.
//
// Locks: a Receiver may call Channel and Conn with its own lock held, so Conn.mu and Workers.mu are taken after it, and no method of a
// Receiver is called under them. Workers.mu is taken before Conn.mu. Nothing blocks under either.
package transport
