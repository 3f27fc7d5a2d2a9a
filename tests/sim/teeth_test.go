//go:build !race

package sim

import (
	"flag"
	"os/exec"
	"strings"
	"testing"
)

var teeth = flag.Bool("teeth", false, "build the tests without each guard in turn, and expect a failure")

// Teeth: without one guard, a scenario that passes with it must fail, for the right reason. A build with the tag
// teeth_NAME replaces that guard by one that lets everything pass.
func TestTeeth(t *testing.T) {
	if !*teeth {
		t.Skip("make slow runs it, because it builds a test program for each guard")
	}
	for _, tooth := range []struct{ tag, scenario, because string }{
		{"teeth_dedupe", "TestN7DuplicateElementsAreDropped", "came more than once"},
		{"teeth_lease_client", "TestK15AnElementUnderAnOldLeaseIsDropped", "nothing was dropped"},
		{"teeth_lease_worker", "TestN1AWorkerStopsByItselfWhenItsLeasesEnd", "came after the leases had ended"},
		{"teeth_fsync", "TestK1K2K3TheOpeningOfAnEpochHappensOnce", "were acknowledged, but"},
		{"teeth_checksum", "TestAFlippedBitIsNotDelivered", "are not those it should have"},
		{"teeth_release", "TestATrainerThatStopsReadingHoldsNothingBack", "ids are lost"},
		{"teeth_repeat", "TestN7EveryCallIsRepeated", "twice"},
	} {
		t.Run(tooth.tag, func(t *testing.T) {
			out, err := exec.Command("go", "test", "-vet=off", "-ldflags=-w", "-count=1", "-timeout=2m", "-tags", tooth.tag, "-run", "^"+tooth.scenario+"$", ".").CombinedOutput()
			if err == nil || !strings.Contains(string(out), "--- FAIL: "+tooth.scenario) || !strings.Contains(string(out), tooth.because) {
				t.Errorf("without the guard, %s must fail with %q; it ended with %v:\n%s", tooth.scenario, tooth.because, err, out)
			}
		})
	}
}
