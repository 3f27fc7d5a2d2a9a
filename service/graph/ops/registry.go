package ops

import (
	"bytes"
	"compress/gzip"
	_ "embed"
	"fmt"
	"io"
	"strconv"
	"strings"
	"sync"

	"google.golang.org/protobuf/proto"

	tf "github.com/pecan-ml/pecan/proto/tensorflow"
)

//go:embed ops.pb.gz
var packedOps []byte

//go:embed ops.txt
var opFacts string

// Set describes the ops of one TensorFlow release.
type Set struct {
	byName map[string]*tf.OpDef
	// noCPU contains ops that are registered but have no CPU kernel, so no worker can run them.
	noCPU map[string]bool
	// tensorflow is the release of the list. graphVersion is the newest graph version that this release
	// reads.
	tensorflow   string
	graphVersion int32
}

// Registry reads the embedded list once. It fails only if the build is broken.
var Registry = sync.OnceValues(readOps)

func readOps() (*Set, error) {
	zr, err := gzip.NewReader(bytes.NewReader(packedOps))
	if err != nil {
		return nil, fmt.Errorf("reading the embedded op list: %w", err)
	}
	raw, err := io.ReadAll(zr)
	if err != nil {
		return nil, fmt.Errorf("reading the embedded op list: %w", err)
	}
	var list tf.OpList
	if err := proto.Unmarshal(raw, &list); err != nil {
		return nil, fmt.Errorf("reading the embedded op list: %w", err)
	}
	ops := &Set{byName: make(map[string]*tf.OpDef, len(list.Op)), noCPU: map[string]bool{}}
	for _, op := range list.Op {
		ops.byName[op.GetName()] = op
	}
	for _, line := range strings.Split(opFacts, "\n") {
		key, value, _ := strings.Cut(line, " ")
		switch key {
		case "tensorflow":
			ops.tensorflow = value
		case "graph_version":
			n, err := strconv.ParseInt(value, 10, 32)
			if err != nil {
				return nil, fmt.Errorf("reading the graph version of the embedded op list: %w", err)
			}
			ops.graphVersion = int32(n)
		case "no_cpu":
			ops.noCPU[value] = true
		}
	}
	return ops, nil
}

// Def returns the definition of an op, nil if the release has no such op.
func (s *Set) Def(op string) *tf.OpDef { return s.byName[op] }

// All returns the definitions of all ops by name. The caller must not change the map.
func (s *Set) All() map[string]*tf.OpDef { return s.byName }

// NoCPU reports whether an op is registered but has no kernel for a CPU.
func (s *Set) NoCPU(op string) bool { return s.noCPU[op] }

// Release is the TensorFlow release of the list.
func (s *Set) Release() string { return s.tensorflow }

// GraphVersion is the newest graph version that the release reads.
func (s *Set) GraphVersion() int32 { return s.graphVersion }

// IsDataset reports whether an op creates a dataset.
func (s *Set) IsDataset(op string) bool {
	def, ok := s.byName[op]
	if !ok || !strings.Contains(op, "Dataset") || len(def.OutputArg) != 1 {
		return false
	}
	out := def.OutputArg[0]
	return out.GetType() == tf.DataType_DT_VARIANT && out.GetNumberAttr() == "" && out.GetName() == "handle"
}

// IsSeeded reports whether an op draws from a generator that its seed and seed2 attributes initialise. A
// shuffling queue does not count: the ops that dequeue from it draw.
func (s *Set) IsSeeded(op string) bool {
	def, ok := s.byName[op]
	return ok && def.GetIsStateful() && AttrDef(def, "seed") != nil && AttrDef(def, "seed2") != nil && AttrDef(def, "shared_name") == nil
}

// AttrDef returns the definition of an attribute, nil if the op has no such attribute.
func AttrDef(def *tf.OpDef, name string) *tf.OpDef_AttrDef {
	for _, a := range def.GetAttr() {
		if a.GetName() == name {
			return a
		}
	}
	return nil
}
