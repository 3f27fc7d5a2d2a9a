package graph

import (
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
)

// The numbers of the fields that Finish writes, in GraphDef and, for functions, in FunctionDefLibrary.
const (
	nodeField     = 1
	libraryField  = 2
	versionsField = 4
	functionField = 1
)

// maxKeptEncoding bounds the encodings that a graph keeps. Larger parts are constants, and would need their memory twice.
const maxKeptEncoding = 16 << 10

// appendPart appends the encoding of a node or a function as a field. The graph keeps the encoding of a part of its own,
// because the graphs of thousands of streams have the same one.
func (g *Graph) appendPart(out []byte, field protowire.Number, part proto.Message, own bool) ([]byte, error) {
	out = protowire.AppendTag(out, field, protowire.BytesType)
	if own {
		if kept, known := g.encodings.Load(part); known {
			return protowire.AppendBytes(out, kept.([]byte)), nil
		}
	}
	encoded, err := proto.MarshalOptions{Deterministic: true}.Marshal(part)
	if err != nil {
		return nil, err
	}
	if own && len(encoded) <= maxKeptEncoding {
		g.encodings.Store(part, encoded)
	}
	return protowire.AppendBytes(out, encoded), nil
}
