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
	if c.Plan.GetGroup() > 0 {
		position, changed := startOfGroups(c.Plan, place, c.RestartsStreams())
		if c.RestartsStreams() {
			warnOfRestart(c, position, changed)
		} else {
			warnOfAbandoned(c, position, changed)
		}
		return position
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
		warnOfRestart(c, position, changed)
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
	warnOfAbandoned(c, position, changed)
	return position
}

// startOfGroups is StartPosition in plans with groups. changed counts the streams that restart, or are abandoned.
func startOfGroups(plan *pecanv1.Plan, place *pecanv1.Position, restarts bool) (position *pecanv1.Position, changed int) {
	total := plan.TotalStreams()
	position = proto.CloneOf(place)
	at, err := epoch.NewProgress(place, total)
	if err != nil {
		// The dispatcher refuses such a position.
		return position, 0
	}
	if restarts {
		if plan.HasClosing() && !at.Over.Has(total-1) {
			// The last closing stream joins rows of all others.
			at.Over = nil
		}
		changed, at.Next = len(at.Next), nil
		at.Record(position)
		return position, changed
	}
	// Closing streams are abandoned with the streams whose rows they join.
	abandoned := map[uint32]bool{}
	for stream := range total {
		if at.Next[stream] == 0 && !at.Over.Has(stream) {
			continue
		}
		abandoned[stream] = true
		for closing, ok := plan.ClosingOf(stream); ok; closing, ok = plan.ClosingOf(closing) {
			abandoned[closing] = true
		}
	}
	for stream := range abandoned {
		if !at.Over.Has(stream) {
			at.Over.Set(stream)
			changed++
		}
	}
	at.Next = nil
	at.Record(position)
	return position, changed
}

func warnOfRestart(c *epoch.Consumer, position *pecanv1.Position, changed int) {
	if changed > 0 {
		c.Link.Log().Warn(fmt.Sprintf("%d streams of epoch %d restart from their beginning: in this dataset an index does not identify an element (class C), and no element may be missing (mode at_least_once)",
			changed, position.Epoch), "job", c.JobID)
	}
}

func warnOfAbandoned(c *epoch.Consumer, position *pecanv1.Position, changed int) {
	if changed > 0 {
		c.Link.Log().Warn(fmt.Sprintf("the rest of %d streams of epoch %d is abandoned: in this dataset an index does not identify an element (class C), and no element may come twice (mode at_most_once)",
			changed, position.Epoch), "job", c.JobID)
	}
}

// Partial reports whether a position is not the start of its epoch.
func Partial(position *pecanv1.Position) bool {
	return len(position.GetNext())+len(position.GetBegun())+len(position.GetEndedRuns())+len(position.GetEndedBits()) > 0
}

// Ended returns how many streams have ended at a position.
func Ended(position *pecanv1.Position) int {
	n := len(position.GetEnded())
	for i, length := range position.GetEndedRuns() {
		if i%2 == 1 {
			n += int(length)
		}
	}
	return n + epoch.Bitmap(position.GetEndedBits()).Count()
}
