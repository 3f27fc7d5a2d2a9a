package pooled_test

import (
	"fmt"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	tf "github.com/pecan-ml/pecan/proto/tensorflow"
	"github.com/pecan-ml/pecan/service/graph/graphtest"
	"github.com/pecan-ml/pecan/service/graph/pooled"
	"github.com/pecan-ml/pecan/service/graph/rewrite"
)

func split(t *testing.T, name string, at rewrite.At) (pooled.Key, []pooled.Argument, []byte) {
	t.Helper()
	g := graphtest.Parse(t, name)
	at.Mode, at.Source = graphtest.Once.Mode, -1
	graphs, err := rewrite.Instantiate(g, graphtest.Plan(t, g, graphtest.Once, 0), at)
	if err != nil {
		t.Fatal(err)
	}
	key, arguments, err := pooled.Separate(graphs.A)
	if err != nil {
		t.Fatal(err)
	}
	return key, arguments, graphs.A
}

func TestTheStreamsOfAnEpochHaveOneTemplate(t *testing.T) {
	for _, name := range []string{"range", "map_batch", "slices", "zip", "records", "listed", "lookup"} {
		first, arguments, serialised := split(t, name, rewrite.At{Stream: 0, Epoch: 1, Meters: "m0"})
		if _, err := pooled.NewTemplate(serialised); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		other, others, _ := split(t, name, rewrite.At{Stream: 1, Epoch: 2, Meters: "m1"})
		if first != other {
			t.Errorf("%s: two streams have two templates", name)
		}
		if len(arguments) != len(others) || fmt.Sprint(arguments) == fmt.Sprint(others) {
			t.Errorf("%s: the arguments are %v and %v", name, arguments, others)
		}
	}
}

func TestGraphsThatDifferElsewhereHaveOtherTemplates(t *testing.T) {
	keys := map[pooled.Key]string{}
	for _, name := range []string{"range", "map_batch", "slices", "records"} {
		for _, start := range []uint64{0, 3} {
			key, _, _ := split(t, name, rewrite.At{Start: start})
			if before := keys[key]; before != "" {
				t.Errorf("%s from %d has the template of %s", name, start, before)
			}
			keys[key] = fmt.Sprint(name, " from ", start)
		}
	}
}

func TestGraphsWithStateInFunctionsArePrivate(t *testing.T) {
	for name, want := range map[string]string{"nested_shuffle": "RandomUniform", "counter": "variable that steps change", "generator_state": "variable that steps change"} {
		_, _, serialised := split(t, name, rewrite.At{})
		if _, err := pooled.NewTemplate(serialised); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestADamagedGraphIsRefused(t *testing.T) {
	_, _, serialised := split(t, "map_batch", rewrite.At{})
	for _, n := range []int{1, len(serialised) / 2, len(serialised) - 1} {
		if _, _, err := pooled.Separate(serialised[:n]); err == nil {
			t.Errorf("the first %d bytes are split", n)
		}
		if _, err := pooled.NewTemplate(serialised[:n]); err == nil {
			t.Errorf("the first %d bytes make a template", n)
		}
	}
}

func TestTheSourceOfElementsIsNoPartOfTheTemplate(t *testing.T) {
	g := graphtest.Parse(t, "filter_batch_map")
	plan := graphtest.Plan(t, g, graphtest.Once, 0)
	var keys []pooled.Key
	for source := range int64(2) {
		graphs, err := rewrite.Instantiate(g, plan, rewrite.At{Stream: int(source), Mode: graphtest.Once.Mode, Source: 5 + source})
		if err != nil {
			t.Fatal(err)
		}
		key, _, err := pooled.Separate(graphs.B)
		if err != nil {
			t.Fatal(err)
		}
		keys = append(keys, key)
		template, err := pooled.NewTemplate(graphs.B)
		if err != nil {
			t.Fatal(err)
		}
		raw, err := template.Graph(pooled.Names{Arguments: 11, Elements: 12})
		if err != nil {
			t.Fatal(err)
		}
		var sources []int64
		for _, f := range graphtest.Decode(t, raw).GetLibrary().GetFunction() {
			for _, n := range f.GetNodeDef() {
				if n.GetOp() == "MapDataset" && strings.HasPrefix(n.GetName(), "pecan_pull") && n.GetAttr()["use_inter_op_parallelism"].GetB() {
					t.Errorf("%s changes threads for each element", n.GetName())
				}
				if n.GetOp() == "PecanPull" {
					sources = append(sources, n.GetAttr()["source"].GetI())
				}
			}
		}
		if fmt.Sprint(sources) != "[11 12]" {
			t.Errorf("the sources are %v", sources)
		}
	}
	if keys[0] != keys[1] {
		t.Error("two sources have two templates")
	}
}

// Steps run inline only where no thread but the reader's computes them.
func TestOnlyPlainStepsRunInline(t *testing.T) {
	check := func(name, want string, serialised []byte) {
		template, err := pooled.NewTemplate(serialised)
		if err != nil {
			t.Fatal(name, err)
		}
		if why := template.WhyNotInline(); want == "" && why != nil || want != "" && (why == nil || !strings.Contains(why.Error(), want)) {
			t.Errorf("%s: %v", name, why)
		}
	}
	for name, want := range map[string]string{
		"uncached": "", "map_filter_batch": "", "padded": "", "map_batch": "is a ParallelMapDataset", "filter_batch": "is a PrefetchDataset",
		"options": "set threads", "range": "no step would be parallel",
	} {
		_, _, serialised := split(t, name, rewrite.At{})
		check(name, want, serialised)
	}
	for _, op := range []string{"ReadFile", "StatelessIf", "StatelessWhile", "Switch"} {
		_, _, serialised := split(t, "uncached", rewrite.At{})
		def := new(tf.GraphDef)
		if err := proto.Unmarshal(serialised, def); err != nil {
			t.Fatal(err)
		}
		for _, f := range def.GetLibrary().GetFunction() {
			f.NodeDef = append(f.NodeDef, &tf.NodeDef{Name: "added", Op: op})
		}
		changed, err := proto.Marshal(def)
		if err != nil {
			t.Fatal(err)
		}
		check("uncached with "+op, "has a "+op, changed)
	}
}
