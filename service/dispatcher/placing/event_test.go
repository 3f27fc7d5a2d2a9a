package placing

import (
	"encoding/json"
	"maps"
	"os"
	"regexp"
	"slices"
	"testing"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
)

func TestAnEventHasTheMeasurementsOfItsDecision(t *testing.T) {
	j, p := &job{step: 0.01, element: 0.05}, New()
	r := Request{JobID: "j", Options: &pecanv1.PlacementOptions{Objective: "cost"}, Remote: 16}
	first, _ := p.Decide(r)
	if e := p.Event(r, first); e.CPU != nil || e.Queue != nil {
		t.Errorf("before the first window, the use of processors is %v and the queue %v", e.CPU, e.Queue)
	}
	r.Window, r.Left = j.window(2), 6000
	r.Window.Gap = true
	decided, _ := p.Decide(r)
	e := p.Event(r, decided)
	// A worker uses 0.05 of two cores. 6,000 elements take 150 s.
	if e.CPU == nil || *e.CPU != 0.025 || e.Queue == nil || *e.Queue != 1 || e.Horizon != 50 || !e.Gap {
		t.Errorf("%+v", e)
	}
}

func TestThePageHasTheFieldsOfAnEvent(t *testing.T) {
	page, err := os.ReadFile("../../../docs/formats/decisions.md")
	if err != nil {
		t.Fatal(err)
	}
	var described []string
	for _, row := range regexp.MustCompile("(?m)^\\| (`.*?) \\|").FindAllSubmatch(page, -1) {
		for _, name := range regexp.MustCompile("`([a-z_]+)`").FindAllSubmatch(row[1], -1) {
			described = append(described, string(name[1]))
		}
	}
	text, err := json.Marshal(Event{})
	if err != nil {
		t.Fatal(err)
	}
	var fields map[string]any
	if err := json.Unmarshal(text, &fields); err != nil {
		t.Fatal(err)
	}
	slices.Sort(described)
	if written := slices.Sorted(maps.Keys(fields)); !slices.Equal(written, described) {
		t.Errorf("events have the fields %v, and the page describes %v", written, described)
	}
}
