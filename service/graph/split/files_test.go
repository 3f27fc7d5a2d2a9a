package split_test

import (
	"testing"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/graph/graphtest"
	"github.com/pecan-ml/pecan/service/graph/split"
)

// All streams together read the files that the only stream of an undivided dataset reads. Other lists are no files.
func TestAnUndividedDatasetHasFilesToo(t *testing.T) {
	g := graphtest.Parse(t, "records")
	divided := graphtest.Plan(t, g, graphtest.Once, 2)
	one := &pecanv1.JobOptions{Mode: graphtest.ExactlyOnce, Streams: 1}
	whole := graphtest.Plan(t, g, one, 2)
	if divided.NumStreams < 2 || whole.NumStreams != 1 {
		t.Fatalf("the plans have %d and %d streams", divided.NumStreams, whole.NumStreams)
	}
	found := split.Files(g, whole, split.EpochStream{})
	seen := map[string]bool{}
	for _, name := range found {
		seen[name] = true
	}
	files := 0
	for s := range int(divided.NumStreams) {
		for _, name := range split.Files(g, divided, split.EpochStream{Stream: s}) {
			files++
			if !seen[name] {
				t.Errorf("stream %d reads %s, which is not among %q", s, name, found)
			}
		}
	}
	if files == 0 || files != len(found) {
		t.Errorf("streams read %d files, and the only stream %q", files, found)
	}
	r := graphtest.Parse(t, "range")
	if none := split.Files(r, graphtest.Plan(t, r, one, 2), split.EpochStream{}); none != nil {
		t.Errorf("a range reads %q", none)
	}
}
