package pecanv1

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
)

// Groups returns the number of groups of streams.
func (p *Plan) Groups() uint32 {
	streams, group := uint32(max(0, p.GetNumStreams())), uint32(max(0, p.GetGroup()))
	if group == 0 || streams == 0 {
		return 1
	}
	return (streams-1)/group + 1
}

// Closings returns the number of closing streams.
func (p *Plan) Closings() uint32 {
	switch groups := p.Groups(); {
	case !p.HasClosing():
		return 0
	case groups == 1:
		return 1
	default:
		return groups + 1
	}
}

// TotalStreams returns the number of streams of an epoch, closing streams included.
func (p *Plan) TotalStreams() uint32 { return uint32(max(0, p.GetNumStreams())) + p.Closings() }

// IsClosing reports whether a stream is a closing stream.
func (p *Plan) IsClosing(stream uint32) bool {
	return p.HasClosing() && stream >= uint32(max(0, p.GetNumStreams()))
}

// ClosingOf returns the closing stream that joins what a stream keeps back; false without one.
func (p *Plan) ClosingOf(stream uint32) (uint32, bool) {
	streams, groups := uint32(max(0, p.GetNumStreams())), p.Groups()
	switch {
	case !p.HasClosing():
		return 0, false
	case stream < streams && groups == 1:
		return streams, true
	case stream < streams:
		return streams + stream/uint32(p.GetGroup()), true
	case groups > 1 && stream < streams+groups:
		return streams + groups, true
	}
	return 0, false
}

// Sources returns the streams that a closing stream joins: those from first on, below below.
func (p *Plan) Sources(closing uint32) (first, below uint32) {
	streams, groups := uint32(max(0, p.GetNumStreams())), p.Groups()
	switch {
	case groups == 1:
		return 0, streams
	case closing >= streams+groups:
		return streams, streams + groups
	}
	first = (closing - streams) * uint32(p.GetGroup())
	return first, min(first+uint32(p.GetGroup()), streams)
}

// LastClosing returns the closing stream that sends the last batches of an epoch; false without one.
func (p *Plan) LastClosing() (uint32, bool) {
	return p.TotalStreams() - 1, p.HasClosing()
}

// CheckKeptRows refuses rows that a closing stream cannot have left for an epoch. Left rows are from earlier epochs, in the
// order of epochs and streams. They are from streams that the last closing stream joins, and fill no batch.
func (p *Plan) CheckKeptRows(before uint64, list []*KeptRows) error {
	last, exists := p.LastClosing()
	if len(list) > 0 && (!exists || !p.GetCarry()) {
		return errors.New("rows of another epoch, but the plan has no carry")
	}
	first, below := p.Sources(last)
	left := uint64(max(0, p.GetBatchRows()))
	for i, kept := range list {
		switch {
		case kept == nil || kept.Epoch >= before || kept.Stream < first || kept.Stream >= below:
			return fmt.Errorf("rows of stream %d in epoch %d, which is no source of the closing stream of an epoch before %d", kept.GetStream(), kept.GetEpoch(), before)
		case i > 0 && cmp.Or(cmp.Compare(list[i-1].Epoch, kept.Epoch), cmp.Compare(list[i-1].Stream, kept.Stream)) >= 0:
			return fmt.Errorf("rows of stream %d in epoch %d are not in order", kept.Stream, kept.Epoch)
		case kept.Rows == 0 || kept.Rows >= left || kept.Skip > maxSkip:
			return fmt.Errorf("%d rows of stream %d in epoch %d after %d rows, in a list of less than %d", kept.Rows, kept.Stream, kept.Epoch, kept.Skip, p.GetBatchRows())
		}
		left -= kept.Rows
	}
	return nil
}

// maxSkip bounds the rows of a remainder.
const maxSkip = 1 << 62

// CheckRows refuses a position whose rows of other epochs do not fit a plan.
func (p *Position) CheckRows(plan *Plan) error {
	if err := plan.CheckKeptRows(p.GetEpoch(), p.GetJoins()); err != nil {
		return err
	}
	if !p.GetCarried() && len(p.GetCarry()) > 0 || p.GetCarried() && !plan.GetCarry() {
		return errors.New("rows for the next epoch that are not known, or a plan without a carry")
	}
	return plan.CheckKeptRows(p.GetEpoch()+1, p.GetCarry())
}

// Differences returns a list of numbers as the messages with lists have them: each one is the difference to the number
// before.
func Differences[Number uint32 | uint64](numbers []Number) []int64 {
	list, last := make([]int64, len(numbers)), Number(0)
	for i, n := range numbers {
		list[i], last = int64(uint64(n)-uint64(last)), n
	}
	return list
}

// Numbers returns the numbers of a list of differences. It fails if one of them does not fit.
func Numbers[Number uint32 | uint64](differences []int64) ([]Number, error) {
	list, last := make([]Number, len(differences)), uint64(0)
	for i, difference := range differences {
		last += uint64(difference)
		if list[i] = Number(last); uint64(list[i]) != last {
			return nil, fmt.Errorf("number %d of a list is %d, which is too large", i, last)
		}
	}
	return list, nil
}

// EndedStreams returns the streams of a position that have ended as a bitmap, stream 0 in the lowest bit of the first byte.
// It fails if the position names a stream above total.
func (p *Position) EndedStreams(total uint32) ([]byte, error) {
	bits := make([]byte, (total+7)/8)
	set := func(stream uint32) bool {
		if stream >= total {
			return false
		}
		bits[stream/8] |= 1 << (stream % 8)
		return true
	}
	for _, stream := range p.GetEnded() {
		if !set(stream) {
			return nil, errAbove(stream, total)
		}
	}
	at := uint64(0)
	for i, length := range p.GetEndedRuns() {
		if at += uint64(length); at > uint64(total) {
			return nil, errAbove(uint32(min(at-1, 1<<32-1)), total)
		}
		for stream := at - uint64(length); i%2 == 1 && stream < at; stream++ {
			set(uint32(stream))
		}
	}
	for i, b := range p.GetEndedBits() {
		for bit := range uint32(8) {
			if b&(1<<bit) != 0 && !set(uint32(i)*8+bit) {
				return nil, errAbove(uint32(i)*8+bit, total)
			}
		}
	}
	return bits, nil
}

// BegunStreams returns the streams of a position that have begun, ascending, and the index of the next element of each.
// It fails if the position names a stream above total.
func (p *Position) BegunStreams(total uint32) (streams []uint32, next []uint64, err error) {
	if uint64(len(p.GetNext())) > uint64(total) {
		return nil, nil, errAbove(uint32(len(p.GetNext())-1), total)
	}
	if len(p.GetBegun()) != len(p.GetBegunNext()) {
		return nil, nil, fmt.Errorf("a position has %d streams that have begun, and the indexes of %d", len(p.GetBegun()), len(p.GetBegunNext()))
	}
	for stream, index := range p.GetNext() {
		if index > 0 {
			streams, next = append(streams, uint32(stream)), append(next, index)
		}
	}
	at := uint64(0)
	for i, difference := range p.GetBegun() {
		if at += uint64(difference); at >= uint64(total) {
			return nil, nil, errAbove(uint32(min(at, 1<<32-1)), total)
		}
		if difference == 0 && i > 0 {
			return nil, nil, fmt.Errorf("a position names stream %d twice", at)
		}
		streams, next = append(streams, uint32(at)), append(next, p.GetBegunNext()[i])
	}
	return streams, next, nil
}

func errAbove(stream, total uint32) error {
	return fmt.Errorf("a position names stream %d of an epoch with %d streams", stream, total)
}

// Without returns the fields of a command that differ from common, as the entries of a StartStreams have them.
func (x *StartStream) Without(common *StartStream) *StartStream {
	entry := &StartStream{
		Id: &StreamId{Stream: x.GetId().GetStream()}, Lease: x.Lease, Closing: x.Closing, Remainders: x.Remainders, DeliveredBelow: x.DeliveredBelow,
		RemainderOnly: x.RemainderOnly, CleanBelow: x.CleanBelow, AckedBelow: x.AckedBelow, Cache: x.Cache, CrashGuard: x.CrashGuard,
		OpenExclusive: x.OpenExclusive, RemaindersChanged: x.RemaindersChanged,
	}
	if x.Plan != common.GetPlan() {
		entry.Plan = x.Plan
	}
	return entry
}

// With returns the whole command of an entry of a StartStreams.
func (x *StartStream) With(id *StreamId, common *StartStream) *StartStream {
	whole := &StartStream{
		Id: id, Lease: x.Lease, Closing: x.Closing, Remainders: x.Remainders, DeliveredBelow: x.DeliveredBelow,
		RemainderOnly: x.RemainderOnly, CleanBelow: x.CleanBelow, AckedBelow: x.AckedBelow, Cache: x.Cache, CrashGuard: x.CrashGuard,
		OpenExclusive: x.OpenExclusive, RemaindersChanged: x.RemaindersChanged,
		Fingerprint: common.GetFingerprint(), Plan: common.GetPlan(), Options: common.GetOptions(), Components: common.GetComponents(), Prefetch: common.GetPrefetch(),
		MayRunInline: common.GetMayRunInline(),
	}
	if x.Plan != nil {
		whole.Plan = x.Plan
	}
	return whole
}

// MergeRemainders completes a command that has changed sources only. before is the last command for the same lease.
func (x *StartStream) MergeRemainders(before *StartStream) {
	if !x.GetRemaindersChanged() {
		return
	}
	merged := slices.Clone(before.GetRemainders())
	for _, source := range x.Remainders {
		at, found := slices.BinarySearchFunc(merged, source, compareSources)
		if found {
			merged[at] = source
		} else {
			merged = slices.Insert(merged, at, source)
		}
	}
	x.Remainders, x.RemaindersChanged = merged, false
}

// compareSources orders sources as closing streams join them: by epoch, then by stream.
func compareSources(a, b *RemainderSource) int {
	return cmp.Or(cmp.Compare(b.GetEpochsBefore(), a.GetEpochsBefore()), cmp.Compare(a.GetStream(), b.GetStream()))
}

// Starts returns the whole commands of a StartStreams. common has the fields that all streams of the epoch share.
func (x *StartStreams) Starts(common *StartStream) []*StartStream {
	starts := make([]*StartStream, len(x.GetStreams()))
	for i, entry := range x.GetStreams() {
		starts[i] = entry.With(&StreamId{JobId: x.GetJobId(), Epoch: x.GetEpoch(), Stream: entry.GetId().GetStream()}, common)
	}
	return starts
}

// Stops returns the single commands of a StopStreams. It fails if its lists do not fit.
func (x *StopStreams) Stops() ([]*StopStream, error) {
	streams, err := Numbers[uint32](x.GetStreams())
	if err != nil {
		return nil, err
	}
	leases, err := Numbers[uint64](x.GetLeases())
	if err != nil {
		return nil, err
	}
	if len(leases) != len(streams) {
		return nil, fmt.Errorf("the list has %d streams, but %d leases", len(streams), len(leases))
	}
	stops := make([]*StopStream, len(streams))
	for i, stream := range streams {
		stops[i] = &StopStream{Id: &StreamId{JobId: x.GetJobId(), Epoch: x.GetEpoch(), Stream: stream}, Lease: leases[i]}
	}
	return stops, nil
}

// CacheSteps returns the steps that a job with this plan may cache: that of pecan.cache(), or else its candidates.
func (p *Plan) CacheSteps() (steps []*CachePlan) {
	if p.GetCache() != nil {
		return []*CachePlan{p.Cache}
	}
	for _, c := range p.GetCacheCandidates() {
		if c.Plan != nil {
			steps = append(steps, c.Plan)
		}
	}
	return steps
}
