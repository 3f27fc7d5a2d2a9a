package run

import (
	"testing"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
)

func TestASerialRunBeginsBeforeTheElementThatCrashesTheWorker(t *testing.T) {
	o := &pecanv1.StartStream{Plan: &pecanv1.Plan{Resume: &pecanv1.Resume{Strategy: pecanv1.Resume_SEEK}}}
	for _, serial := range []bool{false, true} {
		o.CrashGuard = &pecanv1.CrashGuard{First: 100, Below: 101, Serial: serial}
		at := (&Stream{command: o}).beginning(120, 120)
		// If workers die before they recompute this many elements, a larger distance would never let the stream
		// advance.
		if want := map[bool]uint64{false: 120, true: 100 - farElements}[serial]; at.start != want || at.wanted != want {
			t.Errorf("serial: %t: begins at %d for a reader at %d, want %d", serial, at.start, at.wanted, want)
		}
	}
}
