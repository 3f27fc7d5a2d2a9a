package prices

import (
	"fmt"
	"strings"
)

// Machine names what is bought. An empty type is the only one in the table.
type Machine struct {
	Type, Zone string
	Spot       bool
}

const (
	spotSuffix = ":spot"
	zonePrefix = "@"
)

// ParseMachine reads a machine: TYPE, TYPE@ZONE, and either with ":spot" at its end. The type may be left out.
func ParseMachine(text string) (m Machine, err error) {
	rest, spot := strings.CutSuffix(text, spotSuffix)
	name, zone, hasZone := strings.Cut(rest, zonePrefix)
	if strings.ContainsAny(name+zone, zonePrefix+":") || hasZone && zone == "" {
		return m, fmt.Errorf("machine %q: want TYPE, TYPE@ZONE, TYPE:spot or TYPE@ZONE:spot", text)
	}
	return Machine{Type: name, Zone: zone, Spot: spot}, nil
}
