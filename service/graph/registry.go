package graph

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

// opSet is what is known of the ops of one TensorFlow release.
type opSet struct {
	byName map[string]*tf.OpDef
	// noCPU holds ops that are registered but have no kernel a worker could run.
	noCPU map[string]bool
	// tensorflow is the release the list was taken from, graphVersion the newest graph it reads.
	tensorflow   string
	graphVersion int32
}

// registry reads the embedded list once. The error can only come from a broken build.
var registry = sync.OnceValues(readOps)

func readOps() (*opSet, error) {
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
	ops := &opSet{byName: make(map[string]*tf.OpDef, len(list.Op)), noCPU: map[string]bool{}}
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

// isDataset tells whether an op makes a dataset.
func (o *opSet) isDataset(op string) bool {
	def, ok := o.byName[op]
	if !ok || !strings.Contains(op, "Dataset") || len(def.OutputArg) != 1 {
		return false
	}
	out := def.OutputArg[0]
	return out.GetType() == tf.DataType_DT_VARIANT && out.GetNumberAttr() == "" && out.GetName() == "handle"
}

// isSeeded tells whether an op draws from a generator that its seed and seed2 attributes start. A queue that shuffles does not: who
// takes from it by its name draws.
func (o *opSet) isSeeded(op string) bool {
	def, ok := o.byName[op]
	return ok && def.GetIsStateful() && attrDef(def, "seed") != nil && attrDef(def, "seed2") != nil && attrDef(def, "shared_name") == nil
}

func attrDef(def *tf.OpDef, name string) *tf.OpDef_AttrDef {
	for _, a := range def.GetAttr() {
		if a.GetName() == name {
			return a
		}
	}
	return nil
}

// TensorFlowVersion names the release whose ops are known, for messages.
func TensorFlowVersion() string {
	ops, err := registry()
	if err != nil {
		return "unknown"
	}
	return ops.tensorflow
}
