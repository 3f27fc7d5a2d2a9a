package tf

// #cgo CFLAGS: -I${SRCDIR}/../../build/native/tensorflow/include
// #cgo LDFLAGS: -L${SRCDIR}/../../build/native/tensorflow -l:libtensorflow_cc.so.2 -l:libtensorflow_framework.so.2
// #cgo CFLAGS: -O2 -std=gnu11
// #include <stdlib.h>
// #include "tensorflow.h"
import "C"

import (
	"os"
	"runtime"
	"sync"
	"unsafe"

	"google.golang.org/protobuf/encoding/protowire"
)

// ContextOptions limit the threads of a context.
type ContextOptions struct {
	// InterOpThreads run the functions of all iterators; 0 means one per core.
	InterOpThreads int
	// IntraOpThreads work inside one operation; 0 means one per core.
	IntraOpThreads int
}

// Context is TensorFlow's runtime for this process. One context serves any number of iterators.
type Context struct{ c *C.TFE_Context }

// registerPull registers the source op once, because TensorFlow's op registry is global and accepts a name
// once.
var registerPull = sync.OnceValue(func() error {
	s := newStatus()
	defer s.free()
	C.pecan_register_pull(s.c)
	return wrap("register the source op", s.err())
})

// NewContext starts TensorFlow without accelerators, which belong to the trainer on this host.
func NewContext(options ContextOptions) (*Context, error) {
	if err := os.Setenv("CUDA_VISIBLE_DEVICES", ""); err != nil {
		return nil, wrap("hide accelerators", err)
	}
	if err := registerPull(); err != nil {
		return nil, err
	}
	s := newStatus()
	defer s.free()
	config := options.config()
	c := C.pecan_new_context(unsafe.Pointer(&config[0]), C.size_t(len(config)), s.c)
	if err := s.err(); err != nil {
		return nil, wrap("start TensorFlow", err)
	}
	return &Context{c}, nil
}

// Close frees the context. Close all iterators before.
func (c *Context) Close() { C.TFE_DeleteContext(c.c) }

// config returns a serialised tensorflow.ConfigProto: no accelerator devices, the limits of the thread pools, and no
// MLIR graph optimizer. The MLIR optimizer moves operations out of conditionals. TensorFlow optimizes a function once
// for each stream that calls it. The conversion to MLIR and back is a quarter of the time to open a stream of seven
// maps.
func (o ContextOptions) config() []byte {
	const deviceCount, intraOp, interOp, graphOptions = 1, 2, 5, 10
	const rewriteOptions, disableTFG = 10, 32
	var b []byte
	for _, device := range []string{"GPU", "TPU"} {
		var entry []byte
		entry = protowire.AppendTag(entry, 1, protowire.BytesType)
		entry = protowire.AppendString(entry, device)
		entry = protowire.AppendTag(entry, 2, protowire.VarintType)
		entry = protowire.AppendVarint(entry, 0)
		b = protowire.AppendTag(b, deviceCount, protowire.BytesType)
		b = protowire.AppendBytes(b, entry)
	}
	for field, threads := range map[protowire.Number]int{intraOp: o.IntraOpThreads, interOp: o.InterOpThreads} {
		if threads <= 0 {
			threads = runtime.NumCPU()
		}
		b = protowire.AppendTag(b, field, protowire.VarintType)
		b = protowire.AppendVarint(b, uint64(threads))
	}
	var rewrite, graph []byte
	rewrite = protowire.AppendTag(rewrite, disableTFG, protowire.VarintType)
	rewrite = protowire.AppendVarint(rewrite, 1)
	graph = protowire.AppendTag(graph, rewriteOptions, protowire.BytesType)
	graph = protowire.AppendBytes(graph, rewrite)
	b = protowire.AppendTag(b, graphOptions, protowire.BytesType)
	return protowire.AppendBytes(b, graph)
}
