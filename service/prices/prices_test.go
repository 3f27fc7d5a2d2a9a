package prices_test

import (
	"os"
	"strings"
	"testing"

	"github.com/pecan-ml/pecan/policies/autoscale"
	"github.com/pecan-ml/pecan/service/prices"
)

// example returns the table in the page about the format.
func example(t *testing.T) []byte {
	page, err := os.ReadFile("../../docs/formats/prices.md")
	if err != nil {
		t.Fatal(err)
	}
	_, block, _ := strings.Cut(string(page), "```yaml\n")
	block, _, found := strings.Cut(block, "```")
	if !found {
		t.Fatal("the page has no table")
	}
	return []byte(block)
}

func TestTheDocumentedTableHasThePricesOfItsPage(t *testing.T) {
	table, err := prices.Parse(example(t))
	if err != nil {
		t.Fatal(err)
	}
	tpu := prices.Machine{Type: "tpu-v2-8"}
	for _, c := range []struct {
		name            string
		trainer, worker prices.Machine
		want            autoscale.Prices
		err             string
	}{
		{"all zones", tpu, prices.Machine{Type: "n2-standard-8"}, autoscale.Prices{Trainer: 4.96, Remote: 0.42}, ""},
		{"a zone with its own price", tpu, prices.Machine{Type: "n2-standard-8", Zone: "us-central1-a"}, autoscale.Prices{Trainer: 4.96, Remote: 0.39}, ""},
		{"another zone", tpu, prices.Machine{Type: "n2-standard-8", Zone: "elsewhere"}, autoscale.Prices{Trainer: 4.96, Remote: 0.42}, ""},
		{"spot", tpu, prices.Machine{Type: "n2-standard-8", Spot: true}, autoscale.Prices{Trainer: 4.96, Remote: 0.12}, ""},
		{"spot in a zone that has no price for it", tpu, prices.Machine{Type: "n2-standard-8", Zone: "us-central1-a", Spot: true}, autoscale.Prices{Trainer: 4.96, Remote: 0.12}, ""},
		{"no price for spot", prices.Machine{Type: "tpu-v2-8", Spot: true}, prices.Machine{Type: "n2-standard-8"}, autoscale.Prices{}, "trainers.tpu-v2-8 has no field spot"},
		{"unknown type", tpu, prices.Machine{Type: "m7i"}, autoscale.Prices{}, "no workers.m7i; it has n2-standard-8"},
	} {
		got, err := table.Of(c.trainer, c.worker)
		if got != c.want || (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
			t.Errorf("%s: %+v, %v; want %+v, %q", c.name, got, err, c.want, c.err)
		}
	}
}

func TestInvalidTablesAreRefusedWithTheirField(t *testing.T) {
	for name, c := range map[string]struct{ text, want string }{
		"empty":           {"", "empty"},
		"unknown field":   {"trainer: {}", "trainer not found"},
		"no workers":      {"trainers: {a: {per_hour: 1}}", "has no workers"},
		"negative":        {"trainers: {a: {per_hour: -1}}\nworkers: {b: {per_hour: 1}}", "trainers.a.per_hour is -1"},
		"negative zone":   {"trainers: {a: {per_hour: 1}}\nworkers: {b: {zones: {z: {spot: -1}}}}", "workers.b.zones.z.spot is -1"},
		"not a number":    {"trainers: {a: {per_hour: .nan}}\nworkers: {b: {per_hour: 1}}", "trainers.a.per_hour is NaN"},
		"no price":        {"trainers: {a: {}}\nworkers: {b: {per_hour: 1}}", "trainers.a has no price"},
		"two documents":   {"trainers: {a: {per_hour: 1}}\nworkers: {b: {per_hour: 1}}\n---\nlocal_share: 1", "more than one document"},
		"a type twice":    {"trainers: {a: {per_hour: 1}, a: {per_hour: 2}}\nworkers: {b: {per_hour: 1}}", "already defined"},
		"negative share":  {"local_share: -1\ntrainers: {a: {per_hour: 1}}\nworkers: {b: {per_hour: 1}}", "local_share is -1"},
		"text for number": {"trainers: {a: {per_hour: much}}\nworkers: {b: {per_hour: 1}}", "cannot unmarshal"},
	} {
		if _, err := prices.Parse([]byte(c.text)); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: error %v, want one with %q", name, err, c.want)
		}
	}
}
