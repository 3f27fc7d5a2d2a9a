// Package window keeps the ready elements of a stream between the run that produces them and the reader that takes them.
//
// A Window is bounded in bytes, together with all other windows of the worker. An entry stays until the reader acknowledges
// it, so that a broken connection costs no recomputation. One run appends, and one Reader takes. The newest Reader wins.
// Entries are counted by reference: the window holds one, and each frame that is being sent holds one.
//
// window.go appends entries, attaches readers, gives them entries, and drops acknowledged ones. room.go makes the run wait
// for room. state.go answers how far the window is. entry.go has the content of one frame. reader.go has the interface that
// the data plane implements. times.go sums how long runs compute and how long they wait for room.
//
// The window's lock is taken after a stream's and before a connection's. Reader.Wake is called without it. Append and Take
// are the hot path: do not allocate per element there.
package window
