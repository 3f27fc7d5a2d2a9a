package cachefill

import (
	"errors"
	"testing"
)

// Elements that the graph has given are lost if there is no memory for them. A segment without them must not be kept.
func TestASegmentWithoutLostElementsIsNotKept(t *testing.T) {
	d, runtime := directory(t)
	plan, whole, graphs := cached(t)
	s := source(t, d, plan, whole, nil)
	begin(t, s, &computed{runtime: runtime, graphs: graphs})
	if _, err := s.Pull(); err != nil {
		t.Fatal(err)
	}
	lost := errors.New("there is no memory")
	s.upstream.failed = lost
	if _, err := s.Pull(); !errors.Is(err, lost) {
		t.Fatalf("the error is %v", err)
	}
	numbers(t, s)
	first := whole.Parts[0]
	for _, segment := range writtenBy(s) {
		if segment.Part == first {
			t.Errorf("part %d is stored without the elements that were lost", first)
		}
	}
	s.Close()
}
