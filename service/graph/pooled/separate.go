package pooled

import (
	"fmt"
	"hash/maphash"
	"strings"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	tf "github.com/pecan-ml/pecan/proto/tensorflow"
)

// Key identifies the template of a stream's graph. It is valid in this process only.
type Key struct {
	hash uint64
	size int
}

// seed is the seed of all keys. It is random, so that no dataset can be made to have the key of another.
var seed = maphash.MakeSeed()

// argumentPrefixes begin the names of the constants that differ between the streams of a job.
var argumentPrefixes = []string{"pecan_cut/", "pecan_seed/", "pecan_seed2/", "pecan_start/", "pecan_index/", "pecan_path/"}

// nestedPrefixes are argumentPrefixes for constants in functions.
var nestedPrefixes = []string{"pecan_seed_", "pecan_seed2_", "pecan_index_key_"}

// pullOp reads elements from this process, and its attribute pullSource is the handle of their source. Each pooled
// iterator has its own handle.
const (
	pullOp     = "PecanPull"
	pullSource = "source"
)

// metersNode is the node whose attribute names the resource of the meters. Each pooled iterator has its own name.
const metersNode = "pecan_meters"

func isArgument(prefixes []string, op, name string) bool {
	if op != "Const" {
		return false
	}
	for _, prefix := range prefixes {
		if strings.HasPrefix(name, prefix) {
			return true
		}
	}
	return false
}

// The numbers of the fields that Separate reads in GraphDef, FunctionDefLibrary, FunctionDef and NodeDef.
const (
	graphNode       = 1
	graphLibrary    = 2
	libraryFunction = 1
	functionNode    = 3
	nodeName        = 1
	nodeOp          = 2
)

// Separate returns the template of a stream's graph and the arguments of the stream, without decoding all of the graph.
func Separate(serialised []byte) (Key, []Argument, error) {
	s := &separation{}
	s.hash.SetSeed(seed)
	err := s.fields(serialised, func(number protowire.Number, value []byte) error {
		switch number {
		case graphNode:
			return s.node(value, argumentPrefixes)
		case graphLibrary:
			return s.fields(value, func(number protowire.Number, value []byte) error {
				if number != libraryFunction {
					s.add(value)
					return nil
				}
				return s.fields(value, func(number protowire.Number, value []byte) error {
					if number == functionNode {
						return s.node(value, nestedPrefixes)
					}
					s.add(value)
					return nil
				})
			})
		}
		s.add(value)
		return nil
	})
	return Key{s.hash.Sum64(), s.size}, s.arguments, err
}

// separation is the state of Separate.
type separation struct {
	hash      maphash.Hash
	size      int
	arguments []Argument
}

// fields calls visit for the length-delimited fields of a message, and adds the others to the key.
func (s *separation) fields(message []byte, visit func(protowire.Number, []byte) error) error {
	for len(message) > 0 {
		number, kind, n := protowire.ConsumeTag(message)
		if n < 0 {
			return fmt.Errorf("read a stream's graph: %w", protowire.ParseError(n))
		}
		s.add(message[:n])
		message = message[n:]
		if kind != protowire.BytesType {
			if n = protowire.ConsumeFieldValue(number, kind, message); n < 0 {
				return fmt.Errorf("read a stream's graph: %w", protowire.ParseError(n))
			}
			s.add(message[:n])
			message = message[n:]
			continue
		}
		value, n := protowire.ConsumeBytes(message)
		if n < 0 {
			return fmt.Errorf("read a stream's graph: %w", protowire.ParseError(n))
		}
		if err := visit(number, value); err != nil {
			return err
		}
		message = message[n:]
	}
	return nil
}

// add adds bytes to the key, with their length.
func (s *separation) add(b []byte) {
	var length [8]byte
	for i := range length {
		length[i] = byte(len(b) >> (8 * i))
	}
	_, _ = s.hash.Write(length[:])
	_, _ = s.hash.Write(b)
	s.size += len(b)
}

// node adds a node to the key, or takes it as an argument.
func (s *separation) node(raw []byte, prefixes []string) error {
	var name, op string
	for rest := raw; len(rest) > 0 && op == ""; {
		number, kind, n := protowire.ConsumeTag(rest)
		if n < 0 || kind != protowire.BytesType {
			break
		}
		value, m := protowire.ConsumeBytes(rest[n:])
		if m < 0 {
			break
		}
		switch number {
		case nodeName:
			name = string(value)
		case nodeOp:
			op = string(value)
		}
		rest = rest[n+m:]
	}
	if name == metersNode {
		s.add([]byte(name))
		return nil
	}
	isPull := op == pullOp
	if !isPull && !isArgument(prefixes, op, name) {
		s.add(raw)
		return nil
	}
	var n tf.NodeDef
	if err := proto.Unmarshal(raw, &n); err != nil {
		return fmt.Errorf("read a stream's argument: %w", err)
	}
	if isPull {
		delete(n.Attr, pullSource)
		rest, err := proto.MarshalOptions{Deterministic: true}.Marshal(&n)
		s.add(rest)
		return err
	}
	argument, err := argumentOf(&n)
	if err != nil {
		return err
	}
	s.add([]byte(name))
	s.add([]byte{byte(argument.DType)})
	s.arguments = append(s.arguments, argument)
	return nil
}
