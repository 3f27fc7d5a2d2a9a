// Package payload lays elements out as the payload of DATA frames and reads them back (docs/formats/frame.md).
//
// A Body holds the elements of one frame. There are three kinds. Single is one element, sent from TensorFlow's own memory.
// Columns are elements of one fixed shape, laid out by component. Packed are small elements of any shape, one after the
// other. Frame returns the parts of a frame without copying them; they are valid until Release.
//
// payload.go has Body, Parts and the Builder that aligns components. single.go, columns.go and packed.go have the bodies.
// pool.go reuses buffers outside of Go's heap. decode.go makes tensors of a payload. rows.go counts the rows of a batch and
// leaves some out.
//
// The package must not know streams, windows or connections. A Body is released exactly once, by the last holder of its
// window entry.
package payload
