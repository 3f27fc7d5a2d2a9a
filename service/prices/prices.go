package prices

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/pecan-ml/pecan/policies/autoscale"
)

// Table is a table of prices.
type Table struct {
	// Currency is only shown.
	Currency string           `yaml:"currency"`
	Trainers map[string]Price `yaml:"trainers"`
	Workers  map[string]Price `yaml:"workers"`
	// LocalShare is the price of a local worker per hour, if spare processors of the trainer's host have another use.
	LocalShare float64 `yaml:"local_share"`
	Storage    Storage `yaml:"storage"`
}

// Storage is the price of a gigabyte of caches for a month.
type Storage struct {
	GBMonth float64 `yaml:"gb_month"`
}

const (
	bytesPerGB    = 1e9
	hoursPerMonth = 730
)

// PerByteHour returns the price of a byte for an hour.
func (s Storage) PerByteHour() float64 { return s.GBMonth / bytesPerGB / hoursPerMonth }

// Price is the price of one type of machine.
type Price struct {
	Rate `yaml:",inline"`
	// Zones has the prices of single zones.
	Zones map[string]Rate `yaml:"zones"`
}

// Rate is a price per hour. Spot is the price of a machine that the provider may take back.
type Rate struct {
	PerHour *float64 `yaml:"per_hour"`
	Spot    *float64 `yaml:"spot"`
}

// Parse reads a table.
func Parse(text []byte) (*Table, error) {
	decoder := yaml.NewDecoder(bytes.NewReader(text))
	decoder.KnownFields(true)
	t := &Table{}
	if err := decoder.Decode(t); err != nil {
		if errors.Is(err, io.EOF) {
			return nil, errors.New("the table of prices is empty")
		}
		return nil, fmt.Errorf("the table of prices: %w", err)
	}
	if err := decoder.Decode(&Table{}); !errors.Is(err, io.EOF) {
		return nil, errors.New("the table of prices has more than one document")
	}
	return t, t.validate()
}

func (t *Table) validate() error {
	if err := errors.Join(valid("local_share", &t.LocalShare), valid("storage.gb_month", &t.Storage.GBMonth)); err != nil {
		return err
	}
	for kind, machines := range map[string]map[string]Price{"trainers": t.Trainers, "workers": t.Workers} {
		if len(machines) == 0 {
			return fmt.Errorf("the table of prices has no %s", kind)
		}
		for _, name := range slices.Sorted(maps.Keys(machines)) {
			p := machines[name]
			path := kind + "." + name
			if strings.ContainsAny(name, zonePrefix+":") {
				return fmt.Errorf("%s: a type has no %q and no %q, which name zones and spot machines", path, zonePrefix, ":")
			}
			if err := p.validate(path); err != nil {
				return err
			}
			if p.PerHour == nil && p.Spot == nil && len(p.Zones) == 0 {
				return fmt.Errorf("%s has no price", path)
			}
			for _, zone := range slices.Sorted(maps.Keys(p.Zones)) {
				if err := p.Zones[zone].validate(path + ".zones." + zone); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

func (r Rate) validate(path string) error {
	return errors.Join(valid(path+".per_hour", r.PerHour), valid(path+".spot", r.Spot))
}

func valid(path string, price *float64) error {
	if price != nil && (!(*price >= 0) || math.IsInf(*price, 1)) {
		return fmt.Errorf("%s is %v; a price is finite and not negative", path, *price)
	}
	return nil
}

// Of returns the prices of a job with a type of trainer and a type of worker.
func (t *Table) Of(trainer, worker Machine) (autoscale.Prices, error) {
	of, errTrainer := find("trainers", t.Trainers, trainer)
	remote, errWorker := find("workers", t.Workers, worker)
	if err := errors.Join(errTrainer, errWorker); err != nil {
		return autoscale.Prices{}, err
	}
	return autoscale.Prices{Trainer: of, Remote: remote, Local: t.LocalShare}, nil
}

// find returns the price of a machine: that of its zone, or else that of all zones.
func find(kind string, machines map[string]Price, m Machine) (float64, error) {
	if m.Type == "" {
		if len(machines) > 1 {
			return 0, fmt.Errorf("the table of prices has several %s, and none is named; it has %s", kind, strings.Join(slices.Sorted(maps.Keys(machines)), ", "))
		}
		for only := range machines {
			m.Type = only
		}
	}
	p, has := machines[m.Type]
	if !has {
		return 0, fmt.Errorf("the table of prices has no %s.%s; it has %s", kind, m.Type, strings.Join(slices.Sorted(maps.Keys(machines)), ", "))
	}
	for _, r := range []Rate{p.Zones[m.Zone], p.Rate} {
		price := r.PerHour
		if m.Spot {
			price = r.Spot
		}
		if price != nil {
			return *price, nil
		}
	}
	field := "per_hour"
	if m.Spot {
		field = "spot"
	}
	return 0, fmt.Errorf("%s.%s has no field %s for zone %q or for all zones", kind, m.Type, field, m.Zone)
}
