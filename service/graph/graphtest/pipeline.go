package graphtest

import (
	"testing"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	tf "github.com/pecan-ml/pecan/proto/tensorflow"
	"github.com/pecan-ml/pecan/service/graph"
	"github.com/pecan-ml/pecan/service/graph/nodedef"
	"github.com/pecan-ml/pecan/service/graph/rewrite"
	"github.com/pecan-ml/pecan/service/graph/split"
)

// Sharded returns the options of an exactly-once job with a sharding policy.
func Sharded(s pecanv1.Sharding) *pecanv1.JobOptions {
	return &pecanv1.JobOptions{Mode: pecanv1.Mode_MODE_EXACTLY_ONCE, Sharding: s}
}

const (
	ExactlyOnce   = pecanv1.Mode_MODE_EXACTLY_ONCE
	Deterministic = pecanv1.Mode_MODE_DETERMINISTIC
	AtLeastOnce   = pecanv1.Mode_MODE_AT_LEAST_ONCE
	AtMostOnce    = pecanv1.Mode_MODE_AT_MOST_ONCE
)

// Number returns the value of the constant in input i of a node.
func Number(t testing.TB, def *tf.GraphDef, n *tf.NodeDef, i int) int64 {
	t.Helper()
	v, ok := nodedef.Int(Named(t, def, n.GetInput()[i]))
	if !ok {
		t.Fatalf("input %d of %s is not a constant integer", i, n.GetName())
	}
	return v
}

// Plan plans a dataset for a number of static workers.
func Plan(t testing.TB, g *graph.Graph, opts *pecanv1.JobOptions, workers int) *pecanv1.Plan {
	t.Helper()
	p, err := split.MakePlan(g, opts, split.Env{StaticWorkers: workers})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// Once are the options of an exactly-once job.
var Once = &pecanv1.JobOptions{Mode: pecanv1.Mode_MODE_EXACTLY_ONCE}

// Stream writes the graphs of one stream, by default in exactly-once mode, and returns graph A.
func Stream(t testing.TB, name string, at rewrite.At) *tf.GraphDef {
	t.Helper()
	g := Parse(t, name)
	if at.Mode == pecanv1.Mode_MODE_UNSPECIFIED {
		at.Mode = pecanv1.Mode_MODE_EXACTLY_ONCE
	}
	graphs, err := rewrite.Instantiate(g, Plan(t, g, Once, 0), at)
	if err != nil {
		t.Fatal(err)
	}
	return Decode(t, graphs.A)
}
