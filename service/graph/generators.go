package graph

import (
	"encoding/binary"
	"fmt"

	tf "github.com/pecan-ml/pecan/proto/tensorflow"
)

// usesGenerators tells whether functions draw from tf.random.Generator objects, whose state is a variable.
func (e *editor) usesGenerators() bool {
	for _, f := range e.g.def.GetLibrary().GetFunction() {
		for _, n := range f.GetNodeDef() {
			if wildOps[n.GetOp()] && n.GetOp() != "Timestamp" && n.GetOp() != "NonDeterministicInts" {
				return true
			}
		}
	}
	return false
}

// freshGenerators gives the generators of a stream states of their own. They travel by value like all variables, and
// without this every stream of every epoch would draw the same numbers. whole streams keep the user's state in the
// first epoch, and with it the values of a local run.
func (e *editor) freshGenerators(whole bool) {
	if !e.usesGenerators() {
		return
	}
	for _, n := range e.g.order {
		if n.GetOp() != "AssignVariableOp" {
			continue
		}
		handle, state := e.g.top(n.GetInput()[0]), e.g.top(n.GetInput()[1])
		values, ok := constInts(state)
		if handle.GetOp() != "VarHandleOp" || !ok || constTensor(state).GetDtype() != tf.DataType_DT_INT64 || len(values) < 2 {
			continue
		}
		// The key is the last number of a state, whatever the algorithm.
		key := &values[len(values)-1]
		at := place{head: whole}
		*key, _ = e.seeds.seeds(at, *key, 1, handle.GetName(), false)
		var raw []byte
		for _, v := range values {
			raw = binary.LittleEndian.AppendUint64(raw, uint64(v))
		}
		name := e.add(constNode("pecan_generator/"+n.GetName(), &tf.TensorProto{
			Dtype: tf.DataType_DT_INT64, TensorShape: constTensor(state).GetTensorShape(), TensorContent: raw}))
		e.edit(n.GetName()).Input[1] = name
		// Drawing changes the variable: streams in one worker must not share it.
		own := fmt.Sprintf("pecan_generator_%s_%d_%d", shortHash(e.g.fingerprint, handle.GetName(), fmt.Sprint(e.at.Seed)), e.at.Epoch, e.at.Stream)
		e.edit(handle.GetName()).Attr["shared_name"] = bytesAttr(own)
	}
}
