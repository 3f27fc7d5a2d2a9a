package graph

import (
	"github.com/pecan-ml/pecan/proto/reason"
	tf "github.com/pecan-ml/pecan/proto/tensorflow"
)

// functionOf names the attribute that holds the function which a step calls for every element.
func functionOf(op string) string {
	switch rules[op].kind {
	case oneToOne:
		return "f"
	case perElement:
		if op == "FilterDataset" || op == "ParallelFilterDataset" {
			return "predicate"
		}
		return "f"
	}
	if op == "TakeWhileDataset" {
		return "predicate"
	}
	return ""
}

// checkArity compares functions with the steps and calls that use them, where both sides are in the graph.
func (g *Graph) checkArity() error {
	if err := g.checkDatasetInputs(); err != nil {
		return err
	}
	for _, n := range g.order {
		key := functionOf(n.GetOp())
		name := n.GetAttr()[key].GetFunc().GetName()
		if key == "" || name == "" {
			continue
		}
		input := g.top(n.GetInput()[0])
		args := len(g.outputTypes(input)) + len(g.attr(n, "Targuments").GetList().GetType())
		results := 1
		if rules[n.GetOp()].kind == oneToOne {
			results = len(g.outputTypes(n))
		}
		if err := g.checkCall(n, n.GetName(), name, args, results); err != nil {
			return err
		}
	}
	return g.eachNode(func(n *tf.NodeDef, function string) error {
		if n.GetOp() != "PartitionedCall" && n.GetOp() != "StatefulPartitionedCall" {
			return nil
		}
		name := n.GetAttr()["f"].GetFunc().GetName()
		return g.checkCall(n, nodePath(function, n), name, len(n.GetAttr()["Tin"].GetList().GetType()), len(n.GetAttr()["Tout"].GetList().GetType()))
	})
}

// checkDatasetInputs sees that datasets read datasets.
func (g *Graph) checkDatasetInputs() error {
	for _, n := range g.order {
		if !g.ops.isDataset(n.GetOp()) {
			continue
		}
		at := 0
		for _, arg := range g.ops.byName[n.GetOp()].GetInputArg() {
			size, _ := g.argSize(arg, n)
			for i := at; datasetArgs[arg.GetName()] && i < at+size; i++ {
				if from := g.top(n.GetInput()[i]); !g.ops.isDataset(from.GetOp()) {
					return reason.New(reason.GraphStructure, "node %s takes its elements from %s, a %s and no dataset", quoteName(n.GetName()), quoteName(from.GetName()), from.GetOp())
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
		return reason.New(reason.GraphFunction, "the function %s takes %d arguments, node %s (%s) gives it %d", quoteName(name), len(sig.GetInputArg()), quoteName(path), n.GetOp(), args)
	}
	if len(sig.GetOutputArg()) != results {
		return reason.New(reason.GraphFunction, "the function %s gives %d results, node %s (%s) needs %d", quoteName(name), len(sig.GetOutputArg()), quoteName(path), n.GetOp(), results)
	}
	return nil
}
