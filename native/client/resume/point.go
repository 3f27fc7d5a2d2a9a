package resume

import (
	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
)

// Point is where a stopped iteration resumes.
type Point struct {
	Position *pecanv1.Position
	// Passes counts completed passes of an outer repeat. Elements counts those of the iteration so far.
	Passes   uint64
	Elements uint64

	// Loaded is set if the point comes from a token. If nothing of its pass is left, the iteration begins at the next pass.
	Loaded bool
	// HandedOver is set if another iteration without deliveries handed the point over, so no deliveries lead to it.
	HandedOver bool
}

// GetPosition accepts a nil receiver.
func (p *Point) GetPosition() *pecanv1.Position {
	if p == nil {
		return nil
	}
	return p.Position
}
