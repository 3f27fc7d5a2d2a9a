package worker

import (
	"slices"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
)

// startStreams starts the streams of a list, or updates those that run.
func (s *session) startStreams(list *pecanv1.StartStreams) {
	key := epochKey{list.GetJobId(), list.GetEpoch()}
	if list.GetCommon() != nil {
		s.commons[key] = list.Common
	}
	for _, start := range list.Starts(s.commons[key]) {
		if start.GetClosing() {
			closing := start.GetId().Key()
			start.MergeRemainders(s.closings[closing])
			s.closings[closing] = start
		}
		s.worker.streams.Start(start)
	}
}

// stopStreams stops the streams of a list, or all streams of an epoch that is over.
func (s *session) stopStreams(list *pecanv1.StopStreams) {
	stops, err := list.Stops()
	if err != nil {
		s.worker.log.Warn("a list of streams to stop is invalid", "job", list.GetJobId(), "epoch", list.GetEpoch(), "error", err)
		return
	}
	if list.GetOver() {
		delete(s.commons, epochKey{list.GetJobId(), list.GetEpoch()})
		for _, held := range s.worker.streams.HeldStreams() {
			if held.Id.JobId == list.JobId && held.Id.Epoch == list.Epoch {
				stops = append(stops, &pecanv1.StopStream{Id: held.Id})
			}
		}
	}
	for _, stop := range stops {
		delete(s.closings, stop.GetId().Key())
		s.worker.streams.Stop(stop)
	}
}

// mergeReports makes one message of reports that follow each other: of the starts of one epoch, and of its ends. A
// start stays before the end of its stream. Reports do not move past messages of other kinds.
func mergeReports(messages []*pecanv1.WorkerMessage) []*pecanv1.WorkerMessage {
	if len(messages) < 2 {
		return messages
	}
	var merged []*pecanv1.WorkerMessage
	lists := map[epochKey]*reports{}
	for _, message := range messages {
		id := message.GetStarted().GetId()
		if id == nil {
			id = message.GetEnded().GetId()
		}
		if id == nil {
			clear(lists)
			merged = append(merged, message)
			continue
		}
		key := epochKey{id.GetJobId(), id.GetEpoch()}
		list := lists[key]
		if list == nil {
			list = &reports{started: &pecanv1.StreamsStarted{JobId: key.job, Epoch: key.epoch}, ended: &pecanv1.StreamsEnded{JobId: key.job, Epoch: key.epoch}}
			lists[key] = list
			merged = append(merged, &pecanv1.WorkerMessage{Kind: &pecanv1.WorkerMessage_StreamsStarted{StreamsStarted: list.started}},
				&pecanv1.WorkerMessage{Kind: &pecanv1.WorkerMessage_StreamsEnded{StreamsEnded: list.ended}})
		}
		list.add(message)
	}
	return slices.DeleteFunc(merged, func(message *pecanv1.WorkerMessage) bool {
		started, ended := message.GetStreamsStarted(), message.GetStreamsEnded()
		return started != nil && len(started.Streams) == 0 || ended != nil && len(ended.Streams) == 0
	})
}

// reports are the starts and ends of streams of one epoch.
type reports struct {
	started              *pecanv1.StreamsStarted
	ended                *pecanv1.StreamsEnded
	lastStart, lastEnded numbers
}

// numbers are the newest ones of a list.
type numbers struct{ stream, lease uint64 }

// next returns the differences to the numbers before.
func (n *numbers) next(id *pecanv1.StreamId, lease uint64) (stream, leaseBy int64) {
	stream, leaseBy = int64(uint64(id.GetStream())-n.stream), int64(lease-n.lease)
	n.stream, n.lease = uint64(id.GetStream()), lease
	return stream, leaseBy
}

func (r *reports) add(message *pecanv1.WorkerMessage) {
	if started := message.GetStarted(); started != nil {
		stream, lease := r.lastStart.next(started.Id, started.Lease)
		r.started.Streams, r.started.Leases = append(r.started.Streams, stream), append(r.started.Leases, lease)
		return
	}
	ended := message.GetEnded()
	stream, lease := r.lastEnded.next(ended.Id, ended.Lease)
	r.ended.Streams, r.ended.Leases = append(r.ended.Streams, stream), append(r.ended.Leases, lease)
	r.ended.Counts, r.ended.RemainderRows = append(r.ended.Counts, ended.Count), append(r.ended.RemainderRows, ended.RemainderRows)
}
