package autoorder_test

import (
	"testing"

	"github.com/pecan-ml/pecan/policies/autoorder"
)

func TestSpanChoosesASuitableUnit(t *testing.T) {
	for seconds, want := range map[float64]string{0: "0 µs", 1.18e-5: "11.8 µs", 2.45e-3: "2.45 ms", 0.0381: "38.1 ms", 61.2: "61.2 s"} {
		if got := autoorder.Span(seconds); got != want {
			t.Errorf("%v is %q, want %q", seconds, got, want)
		}
	}
}
