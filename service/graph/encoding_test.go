package graph_test

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"google.golang.org/protobuf/proto"

	tf "github.com/pecan-ml/pecan/proto/tensorflow"
	"github.com/pecan-ml/pecan/service/graph"
)

// The bytes are those of a whole encoding, at the first time and when the graph has kept encodings.
func TestFinishedGraphsHaveTheBytesOfAWholeEncoding(t *testing.T) {
	files, err := filepath.Glob("testdata/*.pb")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		g, err := graph.Parse(data, graph.PeerLimits())
		if err != nil {
			continue
		}
		for range 2 {
			e := graph.NewEditor(g)
			e.AddInt("pecan_test/added", 7)
			got, err := e.Finish(g.Root().GetName() + ":handle:0")
			if err != nil {
				t.Fatal(file, err)
			}
			def := new(tf.GraphDef)
			if err := proto.Unmarshal(got, def); err != nil {
				t.Fatal(file, err)
			}
			want, err := proto.MarshalOptions{Deterministic: true}.Marshal(def)
			if err != nil || !bytes.Equal(got, want) {
				t.Errorf("%s: %d bytes, want %d (%v)", file, len(got), len(want), err)
			}
		}
	}
}
