package resume

import (
	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
)

// Point is where an iteration goes on that was stopped.
type Point struct {
	Position *pecanv1.Position
	// Passes of an outer repeat that are over, and elements of the iteration so far.
	Passes   uint64
	Elements uint64

	// fresh: the iteration has handed nothing out, and where nothing of its pass is left it begins at the next one.
	Loaded bool
	// left by an iteration that had handed out nothing: no deliveries of others lead to it.
	HandedOver bool
}

// GetPosition is nil-safe.
func (r *Point) GetPosition() *pecanv1.Position {
	if r == nil {
		return nil
	}
	return r.Position
}
