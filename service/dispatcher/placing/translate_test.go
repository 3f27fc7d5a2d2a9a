package placing

import (
	"testing"
	"time"

	"github.com/pecan-ml/pecan/policies/autoscale"
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

func TestTheHorizonIsWhatIsLeftInWindows(t *testing.T) {
	trainer := autoscale.Consumer{ElementTimes: []float64{0.1, 0.1, 0.4}}
	one := autoscale.Window{Seconds: 3, Consumers: []autoscale.Consumer{trainer}}
	two := autoscale.Window{Seconds: 3, Consumers: []autoscale.Consumer{trainer, trainer}}
	for _, c := range []struct {
		left float64
		w    autoscale.Window
		want int
	}{{1500, one, 50}, {1500, two, 25}, {1, one, 1}, {1e9, one, 200}, {0, one, 200}, {1500, autoscale.Window{}, 200}} {
		if got := horizon(c.left, c.w); got != c.want {
			t.Errorf("%v elements of %d trainers: %d windows, want %d", c.left, len(c.w.Consumers), got, c.want)
		}
	}
}
