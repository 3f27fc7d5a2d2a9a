// Package frame reads and writes the frames of the data plane, the connection on which workers send elements to clients.
// docs/formats/frame.md describes the format.
//
// Raise Version when a peer of the old version would misread a frame. frame.go has the header of every frame. table.go has the table that describes the elements in a payload.
//
// The sender may be hostile: the package checks every length before it uses it, and allocates no more than the bytes that
// have arrived allow. It must not know streams, credits or connections.
package frame
