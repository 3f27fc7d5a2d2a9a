package placing

import (
	"testing"
	"time"

	"github.com/pecan-ml/pecan/service/dispatcher/core/measure"
)

func TestAWindowThatOtherJobsDisturbedDoesNotCount(t *testing.T) {
	at := func(i int) time.Duration { return time.Duration(i) * time.Second }
	var subs []measure.SubWindow
	for i := range 4 {
		subs = append(subs, measure.SubWindow{Begin: at(i), End: at(i + 1), Elements: 10})
	}
	for _, disturbed := range []bool{false, true} {
		w := (&search{}).windowOf(&measure.Window{End: at(4), Length: at(4), Remote: 1, Trainers: []measure.Trainer{{Subs: subs}}, Disturbed: disturbed}, 1)
		if w.Usable() == disturbed {
			t.Errorf("a window is usable: %v, and it was disturbed: %v", w.Usable(), disturbed)
		}
	}
}
