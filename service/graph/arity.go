package graph

import (
	"github.com/pecan-ml/pecan/proto/reason"
	tf "github.com/pecan-ml/pecan/proto/tensorflow"
	"github.com/pecan-ml/pecan/service/graph/nodedef"
	"github.com/pecan-ml/pecan/service/graph/ops"
)

// checkArity compares functions with the steps and calls that use them, where both sides are in the graph.
func (g *Graph) checkArity() error {
	if err := g.checkDatasetInputs(); err != nil {
		return err
	}
	for _, n := range g.order {
		key := ops.FunctionAttr(n.GetOp())
		name := n.GetAttr()[key].GetFunc().GetName()
		if key == "" || name == "" {
			continue
		}
		input := g.NodeOf(n.GetInput()[0])
		args := len(g.OutputTypes(input)) + len(g.Attr(n, "Targuments").GetList().GetType())
		results := 1
		if ops.Rules[n.GetOp()].Kind == ops.OneToOne {
			results = len(g.OutputTypes(n))
		}
		if err := g.checkCall(n, n.GetName(), name, args, results); err != nil {
			return err
		}
	}
	return g.EachNode(func(n *tf.NodeDef, function string) error {
		if n.GetOp() != "PartitionedCall" && n.GetOp() != "StatefulPartitionedCall" {
			return nil
		}
		name := n.GetAttr()["f"].GetFunc().GetName()
		return g.checkCall(n, nodedef.Path(function, n), name, len(n.GetAttr()["Tin"].GetList().GetType()), len(n.GetAttr()["Tout"].GetList().GetType()))
	})
}

// checkDatasetInputs sees that datasets read datasets.
func (g *Graph) checkDatasetInputs() error {
	for _, n := range g.order {
		if !g.ops.IsDataset(n.GetOp()) {
			continue
		}
		at := 0
		for _, arg := range g.ops.Def(n.GetOp()).GetInputArg() {
			size, _ := g.ArgSize(arg, n)
			for i := at; datasetArgs[arg.GetName()] && i < at+size; i++ {
				if from := g.NodeOf(n.GetInput()[i]); !g.ops.IsDataset(from.GetOp()) {
					return reason.New(reason.GraphStructure, "node %s takes its elements from %s, a %s and no dataset", nodedef.Quote(n.GetName()), nodedef.Quote(from.GetName()), from.GetOp())
				}
			}
			at += size
		}
	}
	return nil
}

func (g *Graph) checkCall(n *tf.NodeDef, path, name string, args, results int) error {
	sig := g.functions[name].GetSignature()
	if len(sig.GetInputArg()) != args {
		return reason.New(reason.GraphFunction, "the function %s takes %d arguments, node %s (%s) gives it %d", nodedef.Quote(name), len(sig.GetInputArg()), nodedef.Quote(path), n.GetOp(), args)
	}
	if len(sig.GetOutputArg()) != results {
		return reason.New(reason.GraphFunction, "the function %s gives %d results, node %s (%s) needs %d", nodedef.Quote(name), len(sig.GetOutputArg()), nodedef.Quote(path), n.GetOp(), results)
	}
	return nil
}
