package analysis

import (
	"math"

	tf "github.com/pecan-ml/pecan/proto/tensorflow"
	"github.com/pecan-ml/pecan/service/graph"
	"github.com/pecan-ml/pecan/service/graph/nodedef"
	"github.com/pecan-ml/pecan/service/graph/ops"
)

// These cardinalities are not counts. They have tf.data's numbers.
const (
	Infinite = int64(-1)
	Unknown  = int64(-2)
)

// Cardinality is the number of elements of a step by tf.data's rules. It runs nothing.
func (a *Analysis) Cardinality(s *graph.Step) int64 {
	return answer(a.cards, s, a.count)
}

func (a *Analysis) count(s *graph.Step) int64 {
	switch s.Rule.Kind {
	case ops.Source:
		return a.countSource(s.Node)
	case ops.OneToOne, ops.PassThrough, ops.Shuffled, ops.Cached:
		return a.Cardinality(s.In[0])
	case ops.Asserted:
		if n, ok := a.g.InputInt(s.Node, "cardinality"); ok {
			return n
		}
	case ops.Zipped:
		return a.countZip(s)
	case ops.Concatenated:
		return a.countConcatenate(s)
	case ops.Repeated:
		return a.countRepeat(s)
	case ops.Batched:
		return a.countBatch(s)
	case ops.Windowed:
		return a.countWindow(s)
	case ops.Positional:
		return a.countPosition(s)
	case ops.PerElement:
		if s.Node.GetOp() == "UnbatchDataset" {
			return a.countUnbatch(s)
		}
		return a.recordsOfExtents(s)
	case ops.Directed:
		return a.countDirected(s)
	case ops.Undivided:
		if s.Node.GetOp() == "ScanDataset" && a.g.Attr(s.Node, "preserve_cardinality").GetB() {
			return a.Cardinality(s.In[0])
		}
	}
	return Unknown
}

func (a *Analysis) countSource(n *tf.NodeDef) int64 {
	switch n.GetOp() {
	case "RangeDataset":
		start, ok1 := a.g.InputInt(n, "start")
		stop, ok2 := a.g.InputInt(n, "stop")
		step, ok3 := a.g.InputInt(n, "step")
		switch {
		case !ok1 || !ok2 || !ok3 || step == 0:
			return Unknown
		case step > 0 && stop == math.MaxInt64:
			// In tf.data this end means "no end". enumerate() uses it.
			return Infinite
		}
		return RangeCount(start, stop, step)
	case "TensorSliceDataset":
		if len(n.GetInput()) == 0 {
			return Unknown
		}
		name, _, _ := nodedef.SplitInput(n.GetInput()[0])
		if dims := nodedef.Tensor(a.g.Node(name)).GetTensorShape().GetDim(); len(dims) > 0 {
			return dims[0].GetSize()
		}
	case "TensorDataset":
		return 1
	case "RandomDataset", "RandomDatasetV2", "ExperimentalRandomDataset":
		return Infinite
	}
	return Unknown
}

// RangeCount is the number of values in a range.
func RangeCount(start, stop, step int64) int64 {
	if (step > 0 && start >= stop) || (step < 0 && start <= stop) {
		return 0
	}
	// The arithmetic is unsigned, because the distance may exceed the largest signed number.
	distance, stride := uint64(stop)-uint64(start), uint64(step)
	if step < 0 {
		distance, stride = uint64(start)-uint64(stop), -uint64(step)
	}
	n := (distance-1)/stride + 1
	if n > math.MaxInt64 {
		return math.MaxInt64
	}
	return int64(n)
}

func (a *Analysis) countZip(s *graph.Step) int64 {
	least := Infinite
	for _, in := range s.In {
		n := a.Cardinality(in)
		if n == Unknown {
			return Unknown
		}
		if n != Infinite && (least == Infinite || n < least) {
			least = n
		}
	}
	return least
}

func (a *Analysis) countConcatenate(s *graph.Step) int64 {
	m, n := a.Cardinality(s.In[0]), a.Cardinality(s.In[1])
	switch {
	case m == Infinite || n == Infinite:
		return Infinite
	case m == Unknown || n == Unknown || m > math.MaxInt64-n:
		return Unknown
	}
	return m + n
}

func (a *Analysis) countRepeat(s *graph.Step) int64 {
	times, ok := a.g.InputInt(s.Node, "count")
	n := a.Cardinality(s.In[0])
	switch {
	case !ok:
		return Unknown
	case times == 0 || n == 0:
		return 0
	case times < 0 || n == Infinite:
		return Infinite
	case n == Unknown || n > math.MaxInt64/times:
		return Unknown
	}
	return n * times
}

func (a *Analysis) countBatch(s *graph.Step) int64 {
	n := a.Cardinality(s.In[0])
	size, ok := a.g.InputInt(s.Node, "batch_size")
	switch {
	case n < 0:
		return n
	case !ok || size < 1:
		return Unknown
	}
	if a.DropsRemainder(s.Node) {
		return n / size
	}
	return CeilDiv(n, size)
}

// CeilDiv is n/size, rounded up.
func CeilDiv(n, size int64) int64 {
	if n%size > 0 {
		return n/size + 1
	}
	return n / size
}

// DropsRemainder reports whether a grouping op drops a short last group.
func (a *Analysis) DropsRemainder(n *tf.NodeDef) bool {
	v, ok := a.g.InputInt(n, "drop_remainder")
	return ok && v != 0
}

func (a *Analysis) countWindow(s *graph.Step) int64 {
	n := a.Cardinality(s.In[0])
	size, ok1 := a.g.InputInt(s.Node, "size")
	shift, ok2 := a.g.InputInt(s.Node, "shift")
	stride, ok3 := a.g.InputInt(s.Node, "stride")
	switch {
	case n < 0:
		return n
	case !ok1 || !ok2 || !ok3 || size < 1 || shift < 1 || stride < 1:
		return Unknown
	}
	if !a.DropsRemainder(s.Node) {
		return CeilDiv(n, shift)
	}
	if size-1 > (math.MaxInt64-1)/stride {
		return 0
	}
	span := (size-1)*stride + 1
	if n < span {
		return 0
	}
	return (n-span)/shift + 1
}

// countPosition counts the elements of a take, skip or shard.
func (a *Analysis) countPosition(s *graph.Step) int64 {
	n := a.Cardinality(s.In[0])
	switch s.Node.GetOp() {
	case "TakeDataset":
		return a.countTake(s, n)
	case "SkipDataset":
		k, ok := a.g.InputInt(s.Node, "count")
		switch {
		case !ok:
			return Unknown
		case k < 0:
			return 0
		case n < 0:
			return n
		}
		return max(0, n-k)
	case "ShardDataset":
		shards, ok1 := a.g.InputInt(s.Node, "num_shards")
		index, ok2 := a.g.InputInt(s.Node, "index")
		switch {
		case n < 0:
			return n
		case !ok1 || !ok2 || shards < 1:
			return Unknown
		}
		if index < n%shards {
			return n/shards + 1
		}
		return n / shards
	}
	return Unknown
}

func (a *Analysis) countTake(s *graph.Step, n int64) int64 {
	k, ok := a.g.InputInt(s.Node, "count")
	switch {
	case !ok || n == Unknown:
		return Unknown
	case k < 0:
		return n
	case n == Infinite:
		return k
	}
	return min(n, k)
}

func (a *Analysis) countUnbatch(s *graph.Step) int64 {
	n := a.Cardinality(s.In[0])
	if n < 0 {
		return n
	}
	for _, shape := range a.g.OutputShapes(s.In[0].OutputOf) {
		if dims := shape.GetDim(); len(dims) > 0 && dims[0].GetSize() > 0 && n <= math.MaxInt64/dims[0].GetSize() {
			return n * dims[0].GetSize()
		}
	}
	return Unknown
}

// countDirected uses only the part of tf.data's rule that holds for every selector.
func (a *Analysis) countDirected(s *graph.Step) int64 {
	for _, in := range s.In {
		if a.Cardinality(in) != Infinite {
			return Unknown
		}
	}
	return Infinite
}
