package prices_test

import (
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

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
	if got := table.Storage.PerByteHour(); math.Abs(got*1e9*730-0.04) > 1e-9 {
		t.Errorf("storage costs %v for a byte and hour", got)
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
		"empty":            {"", "empty"},
		"unknown field":    {"trainer: {}", "trainer not found"},
		"no workers":       {"trainers: {a: {per_hour: 1}}", "has no workers"},
		"negative":         {"trainers: {a: {per_hour: -1}}\nworkers: {b: {per_hour: 1}}", "trainers.a.per_hour is -1"},
		"negative zone":    {"trainers: {a: {per_hour: 1}}\nworkers: {b: {zones: {z: {spot: -1}}}}", "workers.b.zones.z.spot is -1"},
		"not a number":     {"trainers: {a: {per_hour: .nan}}\nworkers: {b: {per_hour: 1}}", "trainers.a.per_hour is NaN"},
		"no price":         {"trainers: {a: {}}\nworkers: {b: {per_hour: 1}}", "trainers.a has no price"},
		"two documents":    {"trainers: {a: {per_hour: 1}}\nworkers: {b: {per_hour: 1}}\n---\nlocal_share: 1", "more than one document"},
		"a type twice":     {"trainers: {a: {per_hour: 1}, a: {per_hour: 2}}\nworkers: {b: {per_hour: 1}}", "already defined"},
		"negative share":   {"local_share: -1\ntrainers: {a: {per_hour: 1}}\nworkers: {b: {per_hour: 1}}", "local_share is -1"},
		"negative storage": {"storage: {gb_month: -1}\ntrainers: {a: {per_hour: 1}}\nworkers: {b: {per_hour: 1}}", "storage.gb_month is -1"},
		"a type with @":    {"trainers: {a@z: {per_hour: 1}}\nworkers: {b: {per_hour: 1}}", "trainers.a@z: a type has no"},
		"text for number":  {"trainers: {a: {per_hour: much}}\nworkers: {b: {per_hour: 1}}", "cannot unmarshal"},
	} {
		if _, err := prices.Parse([]byte(c.text)); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: error %v, want one with %q", name, err, c.want)
		}
	}
}

func TestMachinesAreNamedByTypeZoneAndSpot(t *testing.T) {
	for text, want := range map[string]prices.Machine{
		"":           {},
		"n2":         {Type: "n2"},
		"n2@eu":      {Type: "n2", Zone: "eu"},
		"n2:spot":    {Type: "n2", Spot: true},
		"n2@eu:spot": {Type: "n2", Zone: "eu", Spot: true},
		":spot":      {Spot: true},
		"@eu":        {Zone: "eu"},
	} {
		if got, err := prices.ParseMachine(text); err != nil || got != want {
			t.Errorf("%q: %+v, %v; want %+v", text, got, err, want)
		}
	}
	for _, text := range []string{"n2@", "n2:often", "n2:spot@eu", "n2@eu@us", "@:spot"} {
		if got, err := prices.ParseMachine(text); err == nil || !strings.Contains(err.Error(), "TYPE@ZONE") {
			t.Errorf("%q: %+v, %v", text, got, err)
		}
	}
}

func TestATypeMayBeLeftOutIfThereIsOne(t *testing.T) {
	table, err := prices.Parse([]byte("trainers: {a: {per_hour: 1}, b: {per_hour: 2}}\nworkers: {w: {per_hour: 3, spot: 4}}"))
	if err != nil {
		t.Fatal(err)
	}
	if p, err := table.Of(prices.Machine{Type: "b"}, prices.Machine{Spot: true}); err != nil || p.Trainer != 2 || p.Remote != 4 {
		t.Errorf("%+v, %v", p, err)
	}
	if _, err := table.Of(prices.Machine{}, prices.Machine{}); err == nil || !strings.Contains(err.Error(), "several trainers, and none is named; it has a, b") {
		t.Error(err)
	}
}

// A table that cannot be used leaves the earlier prices, and the log names it once.
func TestAChangedFileIsReadAgain(t *testing.T) {
	path, log := filepath.Join(t.TempDir(), "prices.yaml"), &strings.Builder{}
	n := 0
	write := func(text string) {
		n++
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		changed := time.Unix(int64(n), 0)
		if err := os.Chtimes(path, changed, changed); err != nil {
			t.Fatal(err)
		}
	}
	write("currency: USD\ntrainers: {a: {per_hour: 1}}\nworkers: {w: {per_hour: 3}}")
	file, err := prices.Open(path, slog.New(slog.NewTextHandler(log, nil)))
	if err != nil {
		t.Fatal(err)
	}
	want := func(what string, remote float64, currency string, lines int) {
		t.Helper()
		for range 3 {
			p, c, err := file.Of("", "w")
			if err != nil || p.Remote != remote || c != currency || strings.Count(log.String(), "\n") != lines {
				t.Errorf("%s: %+v %s, %v, log:\n%s", what, p, c, err, log)
			}
		}
	}
	want("at first", 3, "USD", 0)
	write("currency: EUR\ntrainers: {a: {per_hour: 1}}\nworkers: {w: {per_hour: 5}}")
	want("changed", 5, "EUR", 1)
	write("currency: EUR\ntrainers: {a: {per_hour: 1}}\nworkers: {w: {per_hour: -5}}")
	want("invalid", 5, "EUR", 2)
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	want("removed", 5, "EUR", 3)
	write("currency: EUR\ntrainers: {a: {per_hour: 1}}\nworkers: {w: {per_hour: 6}}\nstorage: {gb_month: 0.73}")
	want("there again", 6, "EUR", 4)
	if got := file.Storage(); math.Abs(got*1e12-1) > 1e-9 {
		t.Errorf("storage costs %v for a byte and hour", got)
	}
	if _, _, err := file.Of("a@", "w"); err == nil {
		t.Error("a wrong name of a machine gives no error")
	}
}
