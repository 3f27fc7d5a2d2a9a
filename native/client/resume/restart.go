package resume

import (
	"fmt"
	"slices"

	"google.golang.org/protobuf/proto"

	"github.com/pecan-ml/pecan/native/client/epoch"
	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
)

// StartPosition is the position at which another run of the streams goes on from a place. They are the same where an index says which element
// it is. Where it does not, mode at-least-once begins every stream anew of which something is still to come, so that nothing is left
// out, and mode at-most-once gives up those that had begun, so that nothing comes twice. Rows that streams keep back for the closing
// stream have no index at all: the first begins all streams anew then, and the second gives up the closing stream, too.
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
			c.Link.Log().Warn(fmt.Sprintf("%d streams of epoch %d come again from their start: in this dataset an index does not say which element it is (class C), and none may be left out (mode at_least_once)",
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
		c.Link.Log().Warn(fmt.Sprintf("the rest of %d streams of epoch %d is given up: in this dataset an index does not say which element it is (class C), and none may come twice (mode at_most_once)",
			changed, position.Epoch), "job", c.JobID)
	}
	return position
}
