package serve

import (
	"testing"
	"time"
)

func TestWarningsAboutPeersAreBoundedInTime(t *testing.T) {
	var r rateLog
	now := time.Now()
	for i := range 100 {
		dropped, say := r.allow(now)
		if say != (i < warnBurst) || dropped != 0 {
			t.Fatalf("warning %d: allowed %v, %d dropped", i, say, dropped)
		}
	}
	if dropped, say := r.allow(now.Add(warnPeriod)); !say || dropped != 100-warnBurst {
		t.Fatalf("allowed %v, %d dropped", say, dropped)
	}
}
