package resume

import (
	"fmt"
	"slices"

	"google.golang.org/protobuf/proto"

	"github.com/pecan-ml/pecan/native/client/epoch"
	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
)

// StartPosition returns where a new run of the streams starts to continue from a position. The two are equal
// unless the dataset is of class C, where an index does not identify an element. Then mode at_least_once
// restarts every stream that has elements left, so that none is missing. Mode at_most_once abandons every
// stream that has begun, so that none comes twice. Rows that streams keep for the closing stream have no
// index. While some are left, the first mode restarts all streams, and the second abandons the closing stream
// too.
func StartPosition(c *epoch.Consumer, place *pecanv1.Position) *pecanv1.Position {
	if !c.RestartsStreams() && !c.AbandonsStreams() {
		return place
	}
	position := proto.CloneOf(place)
	ended := func(stream uint32) bool { return slices.Contains(position.Ended, stream) }
	closing, joins := uint32(c.Plan.GetNumStreams()), c.Plan.HasClosing()
	changed := 0
	if c.RestartsStreams() {
		if joins && !ended(closing) {
			position.Ended = nil
		}
		for stream, next := range position.Next {
			if next > 0 && !ended(uint32(stream)) {
				position.Next[stream] = 0
				changed++
			}
		}
		if changed > 0 {
			c.Link.Log().Warn(fmt.Sprintf("%d streams of epoch %d restart from their beginning: in this dataset an index does not identify an element (class C), and no element may be missing (mode at_least_once)",
				changed, position.Epoch), "job", c.JobID)
		}
		return position
	}
	for stream, next := range position.Next {
		if next > 0 && !ended(uint32(stream)) {
			position.Ended = append(position.Ended, uint32(stream))
			changed++
		}
	}
	if joins && len(position.Next) > 0 && !ended(closing) {
		position.Ended = append(position.Ended, closing)
		changed++
	}
	if changed > 0 {
		c.Link.Log().Warn(fmt.Sprintf("the rest of %d streams of epoch %d is abandoned: in this dataset an index does not identify an element (class C), and no element may come twice (mode at_most_once)",
			changed, position.Epoch), "job", c.JobID)
	}
	return position
}
