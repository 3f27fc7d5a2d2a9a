package graph

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"hash"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"

	tf "github.com/pecan-ml/pecan/proto/tensorflow"
	"github.com/pecan-ml/pecan/service/graph/nodedef"
)

// fingerprint hashes what the graph computes. It leaves out names that differ between serialisations: of
// nodes, functions, tables and variables. It also leaves out tf.data's process-wide counters, and handles of
// seed generators and memory caches.
func fingerprint(g *Graph) string {
	h := NewHasher(g)
	digest := h.Node(g.retval.GetName())
	sum := sha256.Sum256(append([]byte("pecan dataset 1\n"), digest...))
	return hex.EncodeToString(sum[:])
}

// Hasher computes a content hash for nodes and functions, each once.
type Hasher struct {
	g         *Graph
	nodes     map[string][]byte
	functions map[string][]byte
}

// NewHasher hashes all nodes of a graph.
func NewHasher(g *Graph) *Hasher { return NewHasherWithout(g, nil) }

// NewHasherWithout returns a Hasher that ignores some inputs of nodes, by the names of nodes and arguments.
func NewHasherWithout(g *Graph, ignored map[string][]string) *Hasher {
	h := &Hasher{g: g, nodes: make(map[string][]byte, len(g.order)), functions: map[string][]byte{}}
	for _, n := range g.order {
		left := ignoredInputs(g, n, ignored[n.GetName()])
		h.nodes[n.GetName()] = h.hashNode(n, func(input string) []byte {
			if left[input] {
				return nil
			}
			name, index, control := nodedef.SplitInput(input)
			if control {
				return h.nodes[name]
			}
			if index == "" {
				index = "0"
			}
			return append([]byte(index+" "), h.nodes[name]...)
		})
	}
	return h
}

// ignoredInputs returns the inputs of a node that only ignored arguments have.
func ignoredInputs(g *Graph, n *tf.NodeDef, ignored []string) map[string]bool {
	left := map[string]bool{}
	for _, arg := range ignored {
		if at := g.InputIndex(n, arg); at >= 0 && at < len(n.GetInput()) {
			left[n.GetInput()[at]] = true
		}
	}
	for at, input := range n.GetInput() {
		if left[input] && !slices.ContainsFunc(ignored, func(arg string) bool { return g.InputIndex(n, arg) == at }) {
			delete(left, input)
		}
	}
	return left
}

// Node is the hash of a node and all its inputs.
func (h *Hasher) Node(name string) []byte { return h.nodes[name] }

// hashNode combines op, attributes and inputs. resolve returns the hash of an input.
func (h *Hasher) hashNode(n *tf.NodeDef, resolve func(string) []byte) []byte {
	sum := sha256.New()
	WriteHashPart(sum, []byte(n.GetOp()))
	WriteHashPart(sum, []byte(n.GetDevice()))
	if mark := h.g.MarkOf(n); mark != "" {
		// Only marks are names that affect the dataset.
		WriteHashPart(sum, []byte(mark))
	}
	keys := make([]string, 0, len(n.GetAttr()))
	for key := range n.GetAttr() {
		if !isNumbering(n.GetOp(), key) {
			keys = append(keys, key)
		}
	}
	slices.Sort(keys)
	for _, key := range keys {
		WriteHashPart(sum, []byte(key))
		WriteHashPart(sum, h.hashAttr(n.Attr[key]))
	}
	var controls [][]byte
	for _, input := range n.GetInput() {
		if strings.HasPrefix(input, "^") {
			controls = append(controls, resolve(input))
			continue
		}
		WriteHashPart(sum, resolve(input))
	}
	WriteHashPart(sum, []byte("after"))
	writeSorted(sum, controls)
	return sum.Sum(nil)
}

// isNumbering reports whether an attribute may differ between two serialisations of one pipeline, or is only
// a hint for the runtime.
func isNumbering(op, key string) bool {
	switch key {
	case "metadata", "shared_name", "container", "debug_name":
		return true
	case "hash", "hash_valid":
		return op == "SnapshotDatasetV2"
	}
	return strings.HasPrefix(key, "_")
}

func (h *Hasher) hashAttr(v *tf.AttrValue) []byte {
	switch x := v.GetValue().(type) {
	case *tf.AttrValue_Func:
		return h.hashCall(x.Func)
	case *tf.AttrValue_List:
		if len(x.List.GetFunc()) > 0 {
			sum := sha256.New()
			for _, f := range x.List.GetFunc() {
				WriteHashPart(sum, h.hashCall(f))
			}
			return sum.Sum(nil)
		}
	case *tf.AttrValue_Tensor:
		if x.Tensor.GetDtype() == tf.DataType_DT_RESOURCE {
			return []byte("handle")
		}
		return hashTensor(x.Tensor)
	}
	raw, err := proto.MarshalOptions{Deterministic: true}.Marshal(v)
	if err != nil {
		// Marshal fails only on invalid UTF-8, which Unmarshal has already refused.
		return []byte(err.Error())
	}
	sum := sha256.Sum256(raw)
	return sum[:]
}

// hashTensor hashes the bytes of a constant without a copy, because they may be most of the graph.
func hashTensor(t *tf.TensorProto) []byte {
	sum := sha256.New()
	WriteHashPart(sum, t.GetTensorContent())
	rest := &tf.TensorProto{
		Dtype: t.Dtype, TensorShape: t.TensorShape, VersionNumber: t.VersionNumber, HalfVal: t.HalfVal, FloatVal: t.FloatVal,
		DoubleVal: t.DoubleVal, IntVal: t.IntVal, StringVal: t.StringVal, ScomplexVal: t.ScomplexVal, Int64Val: t.Int64Val,
		BoolVal: t.BoolVal, DcomplexVal: t.DcomplexVal, ResourceHandleVal: t.ResourceHandleVal, VariantVal: t.VariantVal,
		Uint32Val: t.Uint32Val, Uint64Val: t.Uint64Val, Float8Val: t.Float8Val,
	}
	raw, err := proto.MarshalOptions{Deterministic: true}.Marshal(rest)
	if err != nil {
		// Marshal fails only on invalid UTF-8, which Unmarshal has already refused.
		raw = []byte(err.Error())
	}
	WriteHashPart(sum, raw)
	return sum.Sum(nil)
}

func (h *Hasher) hashCall(f *tf.NameAttrList) []byte {
	sum := sha256.New()
	WriteHashPart(sum, h.function(f.GetName()))
	keys := make([]string, 0, len(f.GetAttr()))
	for key := range f.GetAttr() {
		if !isNumbering("", key) {
			keys = append(keys, key)
		}
	}
	slices.Sort(keys)
	for _, key := range keys {
		WriteHashPart(sum, []byte(key))
		WriteHashPart(sum, h.hashAttr(f.Attr[key]))
	}
	return sum.Sum(nil)
}

// function hashes a function by what it computes. Parse has checked that calls have no cycles and a bounded
// depth.
func (h *Hasher) function(name string) []byte {
	if sum, ok := h.functions[name]; ok {
		return sum
	}
	f := h.g.functions[name]
	sum := sha256.New()
	if KeepsPosition(f) {
		// Decisions about a dataset are stored under its fingerprint. The mark changes which orders of steps
		// are allowed, so the fingerprint must cover it.
		WriteHashPart(sum, []byte(keepPositionMark))
	}
	values := map[string][]byte{}
	for i, arg := range f.GetSignature().GetInputArg() {
		values[arg.GetName()] = binary.BigEndian.AppendUint32([]byte("argument "), uint32(i))
		WriteHashPart(sum, []byte(arg.GetType().String()))
	}
	nodes := map[string]*tf.NodeDef{}
	names := make([]string, 0, len(f.GetNodeDef()))
	for _, n := range f.GetNodeDef() {
		nodes[n.GetName()] = n
		names = append(names, n.GetName())
	}
	sorted, _ := SortFunctionNodes(names, nodes)
	resolve := func(input string) []byte {
		if strings.HasPrefix(input, "^") {
			return values[input[1:]]
		}
		node, output, _ := strings.Cut(input, ":")
		return append([]byte(output+" "), values[node]...)
	}
	for _, node := range sorted {
		values[node] = h.hashNode(nodes[node], resolve)
		if h.g.ops.Def(nodes[node].GetOp()).GetIsStateful() {
			// Two draws from one generator differ from one draw that is used twice. Tracing gives the nodes
			// in functions stable names, so the name can tell them apart.
			values[node] = append(values[node], node...)
		}
	}
	for _, out := range f.GetSignature().GetOutputArg() {
		WriteHashPart(sum, []byte(out.GetType().String()))
		WriteHashPart(sum, resolve(f.GetRet()[out.GetName()]))
	}
	var controls [][]byte
	for _, node := range f.GetControlRet() {
		controls = append(controls, values[node])
	}
	writeSorted(sum, controls)
	h.functions[name] = sum.Sum(nil)
	return h.functions[name]
}

// WriteHashPart writes the length of a part before the part, so that different lists of parts never hash
// equal bytes.
func WriteHashPart(sum hash.Hash, part []byte) {
	var size [8]byte
	binary.BigEndian.PutUint64(size[:], uint64(len(part)))
	sum.Write(size[:])
	sum.Write(part)
}

func writeSorted(sum hash.Hash, parts [][]byte) {
	slices.SortFunc(parts, bytes.Compare)
	for _, part := range parts {
		WriteHashPart(sum, part)
	}
}
