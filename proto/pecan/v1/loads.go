package pecanv1

import "fmt"

// Flags of StreamLoads.
const (
	loadDrained = 1 << iota
	loadUnread
	loadOpened
)

// PackLoads returns loads as a heartbeat has them: a list for each epoch, in the order of the first load of each. The lists
// have no WindowBytes. A message for each stream would be most of the dispatcher's work for a heartbeat.
func PackLoads(loads []*WorkerHeartbeat_StreamLoad) []*StreamLoads {
	type epochKey struct {
		job   string
		epoch uint64
	}
	type newest struct {
		list          *StreamLoads
		stream, lease uint64
	}
	var lists []*StreamLoads
	open := map[epochKey]*newest{}
	for _, load := range loads {
		key := epochKey{load.GetId().GetJobId(), load.GetId().GetEpoch()}
		last := open[key]
		if last == nil {
			last = &newest{list: &StreamLoads{JobId: key.job, Epoch: key.epoch}}
			open[key], lists = last, append(lists, last.list)
		}
		stream := uint64(load.GetId().GetStream())
		list := last.list
		list.Streams, list.Leases = append(list.Streams, int64(stream-last.stream)), append(list.Leases, int64(load.GetLease()-last.lease))
		last.stream, last.lease = stream, load.GetLease()
		list.Produced, list.Acked = append(list.Produced, load.GetProduced()), append(list.Acked, load.GetAcked())
		list.CleanBelow = append(list.CleanBelow, load.GetCleanBelow())
		list.Flags = append(list.Flags, flagIf(load.GetDrained(), loadDrained)|flagIf(load.GetUnread(), loadUnread)|flagIf(load.GetOpened(), loadOpened))
	}
	return lists
}

func flagIf(set bool, flag uint32) uint32 {
	if set {
		return flag
	}
	return 0
}

// Check fails if the lists have different lengths.
func (l *StreamLoads) Check() error {
	n := len(l.GetStreams())
	for _, other := range []int{len(l.GetLeases()), len(l.GetProduced()), len(l.GetAcked()), len(l.GetCleanBelow()), len(l.GetFlags())} {
		if other != n {
			return fmt.Errorf("lists of %d and of %d numbers", n, other)
		}
	}
	return nil
}

// Drained returns StreamLoad.drained of a stream of the list.
func (l *StreamLoads) Drained(at int) bool { return l.Flags[at]&loadDrained != 0 }

// Unread returns StreamLoad.unread of a stream of the list.
func (l *StreamLoads) Unread(at int) bool { return l.Flags[at]&loadUnread != 0 }

// Opened returns StreamLoad.opened of a stream of the list.
func (l *StreamLoads) Opened(at int) bool { return l.Flags[at]&loadOpened != 0 }
