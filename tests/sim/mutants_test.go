//go:build !race

package sim

import (
	"flag"
	"os/exec"
	"strings"
	"testing"
)

var mutants = flag.Bool("mutants", false, "build the tests without each guard in turn, and expect a failure")

// Mutation tests: without one guard, a scenario that passes with it must fail, for the right reason. A build with the tag
// mutant_NAME replaces that guard by one that lets everything pass. A scenario takes some seconds of CPU. Beside process tests of
// higher priority, that may be minutes.
func TestMutants(t *testing.T) {
	if !*mutants {
		t.Skip("make slow runs it, because it builds a test program for each guard")
	}
	for _, mutant := range []struct{ tag, scenario, because string }{
		{"mutant_dedupe", "TestN7DuplicateElementsAreDropped", "came more than once"},
		{"mutant_lease_client", "TestK15AnElementUnderAnOldLeaseIsDropped", "nothing was dropped"},
		{"mutant_lease_worker", "TestN1AWorkerStopsByItselfWhenItsLeasesEnd", "came after the leases had ended"},
		{"mutant_fsync", "TestK1K2K3TheOpeningOfAnEpochHappensOnce", "were acknowledged, but"},
		{"mutant_checksum", "TestAFlippedBitIsNotDelivered", "are not those it should have"},
		{"mutant_release", "TestATrainerThatStopsReadingHoldsNothingBack", "ids are lost"},
		{"mutant_repeat", "TestN7EveryCallIsRepeated", "twice"},
	} {
		t.Run(mutant.tag, func(t *testing.T) {
			out, err := exec.Command("go", "test", "-vet=off", "-ldflags=-w", "-count=1", "-timeout=20m", "-tags", mutant.tag, "-run", "^"+mutant.scenario+"$", ".").CombinedOutput()
			if err == nil || !strings.Contains(string(out), "--- FAIL: "+mutant.scenario) || !strings.Contains(string(out), mutant.because) {
				t.Errorf("without the guard, %s must fail with %q; it ended with %v:\n%s", mutant.scenario, mutant.because, err, out)
			}
		})
	}
}
