package tf

import (
	"os"
	"os/exec"
	"regexp"
	"slices"
	"testing"
)

// TensorFlow's log names the optimizers that ran on each graph. tf.data rewrites the graphs of the datasets themselves
// with its own settings.
func TestFunctionsAreOptimizedWithoutMLIR(t *testing.T) {
	const mapped = "TestFillBlockReturnsElementsOfAnotherShape"
	command := exec.Command(os.Args[0], "-test.run=^"+mapped+"$")
	command.Env = append(os.Environ(), "TF_CPP_MIN_LOG_LEVEL=0", "TF_CPP_VMODULE=meta_optimizer=1")
	log, err := command.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, log)
	}
	said := regexp.MustCompile(`Starting optimization for grappler item: (\w+)|\] (\w+)[^\n]*: Graph size after`)
	optimizers := map[string][]string{}
	item := ""
	for _, found := range said.FindAllStringSubmatch(string(log), -1) {
		if found[1] != "" {
			item = found[1]
		} else {
			optimizers[item] = append(optimizers[item], found[2])
		}
	}
	delete(optimizers, "graph")
	if len(optimizers) != 1 {
		t.Fatalf("%d functions were optimized, expected the one of the map: %v\n%s", len(optimizers), optimizers, log)
	}
	for function, had := range optimizers {
		if !slices.Contains(had, "arithmetic_optimizer") || slices.Contains(had, "tfg_optimizer") {
			t.Errorf("%s went through %v", function, had)
		}
	}
}
