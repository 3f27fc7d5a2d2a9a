package tf

// #include "tensorflow.h"
import "C"

import (
	"fmt"
	"unsafe"

	"google.golang.org/protobuf/proto"

	"github.com/pecan-ml/pecan/proto/tensorflow"
)

// Ops returns all ops that this TensorFlow knows.
func Ops() (*tensorflow.OpList, error) {
	buffer := C.TF_GetAllOpList()
	defer C.TF_DeleteBuffer(buffer)
	ops := new(tensorflow.OpList)
	if err := proto.Unmarshal(unsafe.Slice((*byte)(buffer.data), int(buffer.length)), ops); err != nil {
		return nil, fmt.Errorf("read TensorFlow's op list: %w", err)
	}
	return ops, nil
}

// GraphProducer returns the version that this TensorFlow writes into graphs, and the newest min_consumer that
// it can read.
func GraphProducer() (int, error) {
	graph := C.TF_NewGraph()
	defer C.TF_DeleteGraph(graph)
	buffer := C.TF_NewBuffer()
	defer C.TF_DeleteBuffer(buffer)
	s := newStatus()
	defer s.free()
	C.TF_GraphVersions(graph, buffer, s.c)
	if err := s.err(); err != nil {
		return 0, wrap("read the graph version", err)
	}
	versions := new(tensorflow.VersionDef)
	if err := proto.Unmarshal(unsafe.Slice((*byte)(buffer.data), int(buffer.length)), versions); err != nil {
		return 0, fmt.Errorf("read the graph version: %w", err)
	}
	return int(versions.GetProducer()), nil
}
