package graph

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/proto/reason"
	tf "github.com/pecan-ml/pecan/proto/tensorflow"
)

// aheadOps gives what of a graph makes elements before they are asked for, or several at once.
func aheadOps(t *testing.T, def *tf.GraphDef) (ahead []string) {
	t.Helper()
	for _, n := range def.GetNode() {
		if o, ok := readOptions(n); ok && (o.GetThreadingOptions().GetPrivateThreadpoolSize() > 0 || n.GetName() == "pecan_options" && o.GetAutotuneOptions().GetEnabled()) {
			ahead = append(ahead, n.GetName())
		}
		if op := n.GetOp(); worksAhead(op) || op == prefetchOp || op == parallelBatchOp {
			ahead = append(ahead, op)
		}
	}
	for _, f := range def.GetLibrary().GetFunction() {
		inside := map[string]*tf.NodeDef{}
		for _, n := range f.GetNodeDef() {
			inside[n.GetName()] = n
		}
		for _, n := range f.GetNodeDef() {
			op := n.GetOp()
			if op == prefetchOp {
				if size, ok := constInt(inside[functionInputNode(n.GetInput()[1])]); ok && size == 0 {
					continue
				}
			}
			if worksAhead(op) || op == prefetchOp {
				ahead = append(ahead, f.GetSignature().GetName()+"/"+op)
			}
		}
	}
	return ahead
}

func TestSerialGraphsMakeElementsWhenTheyAreAskedFor(t *testing.T) {
	files, err := filepath.Glob("testdata/*.pb")
	if err != nil {
		t.Fatal(err)
	}
	others, _ := filepath.Glob("../worker/testdata/*.graph")
	written, parallel := 0, 0
	for _, file := range append(files, others...) {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		g, err := Parse(data, Limits{})
		if err != nil {
			continue
		}
		p, err := Analyze(g, &pecanv1.JobOptions{Mode: pecanv1.Mode_MODE_EXACTLY_ONCE, AllowNondeterministic: true}, Env{})
		if err != nil {
			continue
		}
		at := At{Source: -1, Mode: p.GetMode()}
		plain, err := Instantiate(g, p, at)
		if err != nil {
			continue
		}
		for _, keyed := range []bool{false, true} {
			at.Serial, at.Keyed = true, keyed
			serial, err := Instantiate(g, p, at)
			if reason.Is(err, reason.Unsupported) && strings.Contains(err.Error(), "one element at a time") {
				continue
			}
			if err != nil {
				t.Errorf("%s: %v", file, err)
				continue
			}
			written++
			if len(aheadOps(t, decode(t, plain.A))) > 0 {
				parallel++
			}
			if ahead := aheadOps(t, decode(t, serial.A)); len(ahead) > 0 {
				t.Errorf("%s, keyed: %t: %v", file, keyed, ahead)
			}
		}
	}
	if written < 120 || parallel < 16 {
		t.Errorf("%d graphs were written, %d of them otherwise parallel", written, parallel)
	}
}
