package tenants_test

import (
	"maps"
	"os"
	"strings"
	"testing"

	"github.com/pecan-ml/pecan/service/dispatcher/core/schedule"
	"github.com/pecan-ml/pecan/service/tenants"
)

func TestTheDocumentedTableHasTheQuotasOfItsPage(t *testing.T) {
	page, err := os.ReadFile("../../docs/formats/tenants.md")
	if err != nil {
		t.Fatal(err)
	}
	_, block, _ := strings.Cut(string(page), "```yaml\n")
	block, _, found := strings.Cut(block, "```")
	if !found {
		t.Fatal("the page has no table")
	}
	got, err := tenants.Parse([]byte(block))
	want := map[string]schedule.Tenant{
		"vision": {Weight: 3, MaxSlots: 400, CacheBytes: 2e12}, "speech": {Weight: 1, MaxSlots: 100, MaxSlotsPerJob: 40}, "default": {Weight: 0.5, MaxSlotsPerJob: 8},
	}
	if err != nil || !maps.Equal(got, want) {
		t.Errorf("%v, %v; want %v", got, err, want)
	}
}

func TestAnEntryWithoutFieldsHasWeightOneAndNoQuota(t *testing.T) {
	got, err := tenants.Parse([]byte("tenants:\n  a: {}\n  b:\n"))
	if want := (schedule.Tenant{Weight: 1}); err != nil || len(got) != 2 || got["a"] != want || got["b"] != want {
		t.Errorf("%v, %v", got, err)
	}
}

func TestInvalidTablesAreRefusedWithTheirField(t *testing.T) {
	for name, c := range map[string]struct{ text, want string }{
		"empty":          {"", "has no tenants"},
		"no tenants":     {"tenants: {}", "has no tenants"},
		"unknown field":  {"tenants: {a: {slots: 4}}", "slots not found"},
		"no weight":      {"tenants: {a: {weight: 0}}", "tenants.a.weight is 0"},
		"not a number":   {"tenants: {a: {weight: .nan}}", "tenants.a.weight is NaN"},
		"infinite":       {"tenants: {a: {weight: .inf}}", "tenants.a.weight is +Inf"},
		"no slots":       {"tenants: {a: {max_slots: 0}}", "tenants.a.max_slots is 0"},
		"negative":       {"tenants: {a: {max_slots_per_job: -1}}", "tenants.a.max_slots_per_job is -1"},
		"no cache":       {"tenants: {a: {cache_bytes: 0}}", "tenants.a.cache_bytes is 0; a quota is a whole number from 1 to 9007199254740992"},
		"half a slot":    {"tenants: {a: {max_slots: 1.5}}", "tenants.a.max_slots is 1.5"},
		"a name":         {"tenants: {A B: {}}", "tenants.A B"},
		"a tenant twice": {"tenants: {a: {}, a: {weight: 2}}", "already defined"},
		"two documents":  {"tenants: {a: {}}\n---\ntenants: {b: {}}", "more than one document"},
		"no mapping":     {"- a", "cannot unmarshal"},
	} {
		if _, err := tenants.Parse([]byte(c.text)); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}
