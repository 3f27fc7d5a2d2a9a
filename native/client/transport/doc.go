// Package transport is the client's data connections to workers.
//
// Workers finds or makes one Conn for each worker address and protocol. dial.go connects over the Unix socket of a worker on this host or
// over TCP, and shakes hands. Conn.Open opens a Channel for one stream. reader.go takes frames off the connection and hands chunks to the
// channel's Receiver, payload.go brings in payloads, shared.go maps slots of shared memory, check.go checks lengths and checksums, write.go
// sends queued frames and pings.
//
// A Conn is made once. When it fails, each Receiver learns why, and the next Connect makes a new Conn. Which elements are accepted is
// the Receiver's decision, never the connection's.
//
// Locks: a Receiver may call Channel and Conn with its own lock held, so Conn.mu and Workers.mu are taken after it, and no method of a
// Receiver is called under them. Workers.mu is taken before Conn.mu. Nothing blocks under either.
package transport
