package split_test

import (
	"crypto/sha256"
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/graph/graphtest"
	"github.com/pecan-ml/pecan/service/graph/rewrite"
	"github.com/pecan-ml/pecan/service/graph/split"
)

var rewriteGolden = flag.Bool("rewrite", false, "write the plans of now into testdata; read the difference before you commit it")

// Saved positions, caches and journals name plans by their hashes. So plans of one group keep their hashes, and their
// streams keep their graphs, unless a commit says why not.
func TestPlansOfOneGroupKeepTheirHashesAndGraphs(t *testing.T) {
	const golden = "testdata/plans.txt"
	var table strings.Builder
	for name, g := range graphtest.All(t) {
		for _, mode := range []pecanv1.Mode{graphtest.ExactlyOnce, graphtest.Deterministic} {
			opts := &pecanv1.JobOptions{Mode: mode}
			if name == "hint" {
				opts.Sharding = hint
			}
			plan, err := split.MakePlan(g, opts, split.Env{})
			if err != nil {
				fmt.Fprintf(&table, "%s %s refused\n", name, mode)
				continue
			}
			sum := sha256.New()
			for s := range split.LastStream(plan) + 1 {
				graphs, err := rewrite.Instantiate(g, plan, rewrite.At{Stream: s, Epoch: 1, Seed: 9, Mode: plan.Mode, Source: 4, Threads: 1})
				if err != nil {
					t.Fatalf("%s: stream %d: %v", name, s, err)
				}
				sum.Write(graphs.A)
				sum.Write(graphs.B)
			}
			fmt.Fprintf(&table, "%s %s %.16s %.16x\n", name, mode, plan.Hash, sum.Sum(nil))
		}
	}
	if *rewriteGolden {
		if err := os.WriteFile(golden, []byte(table.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	got := strings.Split(table.String(), "\n")
	for i, line := range strings.Split(string(want), "\n") {
		if now := got[min(i, len(got)-1)]; now != line {
			t.Errorf("line %d of %s is %q, and now %q", i+1, golden, line, now)
		}
	}
}
