package rewrite

import (
	"encoding/binary"

	tf "github.com/pecan-ml/pecan/proto/tensorflow"
	"github.com/pecan-ml/pecan/service/graph/nodedef"
	"github.com/pecan-ml/pecan/service/graph/ops"
)

// privateVariables gives a stream private copies of the variables that a step changes. Streams in one worker,
// and two runs of one stream, must not share them. The states of random generators also get new values, because
// otherwise all streams of all epochs would draw the same random values.
func (e *editor) privateVariables(n *tf.NodeDef, place position) {
	if e.plan.off {
		place.upstreamOfCut = false
	}
	for _, c := range e.p.Captures(n) {
		if !c.Use.Writes {
			continue
		}
		e.Edit(c.Handle.GetName()).Attr["shared_name"] = nodedef.BytesAttr(ops.AnonymousVariable)
		if assign := e.assigned[c.Handle.GetName()]; assign != nil && c.Use.IsRandomState() {
			e.deriveGeneratorState(assign, c.Use.Generator, place)
		}
	}
}

// deriveGeneratorState sets the first state of a generator. Generators with equal states in the trainer have
// equal states in every stream, so layers with one seed stay aligned. A graph without a cut keeps the user's
// state in the first epoch, so it has the values of a local run.
func (e *editor) deriveGeneratorState(assign *tf.NodeDef, generator bool, place position) {
	state := e.g.NodeOf(assign.GetInput()[1])
	values, ok := nodedef.Ints(state)
	t := nodedef.Tensor(state)
	if !ok || len(values) == 0 || t.GetDtype() == tf.DataType_DT_BOOL {
		return
	}
	// The key of a tf.random.Generator is the last number, for every algorithm. Other generators have a seed,
	// and perhaps a counter in the next number. TensorFlow's stateless ops use 31 bits of each.
	key := 0
	if generator {
		key = len(values) - 1
	}
	a, b := e.seeds.seeds(place, values[key], 1, "", false)
	if a == values[key] && b == 1 {
		return
	}
	values = append([]int64(nil), values...)
	values[key] = a
	if !generator {
		values[0] = a % (1<<31 - 2)
		if len(values) > 1 {
			values[1] += b % (1 << 30)
		}
	}
	fresh := &tf.TensorProto{Dtype: t.GetDtype(), TensorShape: t.GetTensorShape()}
	for _, v := range values {
		if nodedef.DtypeSize(t.GetDtype()) == 4 {
			fresh.TensorContent = binary.LittleEndian.AppendUint32(fresh.TensorContent, uint32(v))
		} else {
			fresh.TensorContent = binary.LittleEndian.AppendUint64(fresh.TensorContent, uint64(v))
		}
	}
	e.Edit(assign.GetName()).Input[1] = e.Add(nodedef.Const("pecan_generator/"+assign.GetName(), fresh))
}
