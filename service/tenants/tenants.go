// Package tenants reads the table of tenants: the weight of each tenant, and its quotas of slots and caches.
//
// The format is in docs/formats/tenants.md. Unknown fields, weights that are not positive and malformed names are errors. A
// wrong quota would stop a tenant's jobs, or let the tenant take the slots of others, without any visible fault.
package tenants

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"regexp"
	"slices"

	"go.yaml.in/yaml/v3"

	"github.com/pecan-ml/pecan/service/dispatcher/core/schedule"
	"github.com/pecan-ml/pecan/service/dispatcher/validate"
)

// maxWeight bounds weights. maxSlots and maxCacheBytes bound quotas.
const (
	maxWeight     = 1e6
	maxSlots      = 1_000_000_000
	maxCacheBytes = 1 << 53
)

type table struct {
	Tenants map[string]entry `yaml:"tenants"`
}

type entry struct {
	Weight *float64 `yaml:"weight"`
	// The parser would cut the fraction of a number off, so quotas are read as numbers of any kind.
	MaxSlots       *float64 `yaml:"max_slots"`
	MaxSlotsPerJob *float64 `yaml:"max_slots_per_job"`
	CacheBytes     *float64 `yaml:"cache_bytes"`
}

// Parse reads a table. The result has an entry for each tenant of the table.
func Parse(text []byte) (map[string]schedule.Tenant, error) {
	decoder := yaml.NewDecoder(bytes.NewReader(text))
	decoder.KnownFields(true)
	var t table
	if err := decoder.Decode(&t); err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("the table of tenants: %w", err)
	}
	if err := decoder.Decode(&table{}); !errors.Is(err, io.EOF) {
		return nil, errors.New("the table of tenants has more than one document")
	}
	if len(t.Tenants) == 0 {
		return nil, errors.New("the table of tenants has no tenants; without a table, all tenants are equal")
	}
	name := regexp.MustCompile(validate.TenantForm)
	tenants := map[string]schedule.Tenant{}
	for _, key := range slices.Sorted(maps.Keys(t.Tenants)) {
		if !name.MatchString(key) {
			return nil, fmt.Errorf("tenants.%s: want 1 to 63 lower-case letters, digits, dots, underscores or hyphens, the first a letter or digit", key)
		}
		e := t.Tenants[key]
		tenant := schedule.Tenant{Weight: 1}
		if e.Weight != nil {
			if tenant.Weight = *e.Weight; !(tenant.Weight > 0 && tenant.Weight <= maxWeight) {
				return nil, fmt.Errorf("tenants.%s.weight is %v; a weight is above 0 and at most %v", key, tenant.Weight, float64(maxWeight))
			}
		}
		for _, quota := range []struct {
			field string
			given *float64
			most  float64
			into  *int
		}{
			{"max_slots", e.MaxSlots, maxSlots, &tenant.MaxSlots}, {"max_slots_per_job", e.MaxSlotsPerJob, maxSlots, &tenant.MaxSlotsPerJob},
			{"cache_bytes", e.CacheBytes, maxCacheBytes, &tenant.CacheBytes},
		} {
			if quota.given == nil {
				continue
			}
			n := *quota.given
			if !(n >= 1 && n <= quota.most) || n != math.Trunc(n) {
				return nil, fmt.Errorf("tenants.%s.%s is %v; a quota is a whole number from 1 to %.0f, and without the field there is none", key, quota.field, n, quota.most)
			}
			*quota.into = int(n)
		}
		tenants[key] = tenant
	}
	return tenants, nil
}
