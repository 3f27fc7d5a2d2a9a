package core

import (
	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/dispatcher/core/durable"
)

// Changes of streams of one epoch that follow each other in a decision are one record. Each of the functions below extends
// the last record of the decision, or begins another one.

// list is the last record of the decision, if it is a list, with its streams and the last number in each list of
// differences.
type list struct {
	record  *pecanv1.Record
	streams map[uint32]bool
	last    [2]uint64
}

// emitEntry adds a list of one entry to the decision. If the entry joins the last record, extend adds it there. No record
// has a stream twice.
func (c *Core) emitEntry(entry *pecanv1.Record, joins bool, last [2]uint64, extend func(before [2]uint64, length int)) {
	stream, records := uint32(last[0]), c.out.Records
	joins = joins && len(records) > 0 && records[len(records)-1] == c.list.record && len(c.list.streams) < durable.MaxListed && !c.list.streams[stream]
	if !joins {
		c.emit(entry)
		c.list = list{record: entry, streams: map[uint32]bool{stream: true}, last: last}
		return
	}
	if err := c.state.Extend(entry); err != nil {
		panic(err)
	}
	extend(c.list.last, len(c.list.streams))
	c.list.streams[stream], c.list.last = true, last
	c.touchRecord(entry)
}

func (c *Core) emitGrant(epoch *durable.Epoch, stream uint32, lease uint64, worker uint32, restart bool) {
	entry := &pecanv1.LeasesGranted{Opened: epoch.Opened, FirstLease: lease, Streams: []int64{int64(stream)}, Workers: []int64{int64(worker)}, Restart: restart}
	into := c.list.record.GetLeasesGranted()
	joins := into != nil && into.Opened == epoch.Opened && into.Restart == restart && into.FirstLease+uint64(len(c.list.streams)) == lease
	c.emitEntry(&pecanv1.Record{Kind: &pecanv1.Record_LeasesGranted{LeasesGranted: entry}}, joins, [2]uint64{uint64(stream), uint64(worker)}, func(before [2]uint64, _ int) {
		into.Streams = append(into.Streams, int64(uint64(stream)-before[0]))
		into.Workers = append(into.Workers, int64(uint64(worker)-before[1]))
	})
}

func (c *Core) emitAssigned(epoch *durable.Epoch, stream uint32, clientID string, start, assignment uint64) {
	entry := &pecanv1.ConsumersAssigned{
		Opened: epoch.Opened, ClientId: clientID, Streams: []int64{int64(stream)}, StartIndexes: appendValue(nil, 0, start), Assignments: []int64{int64(assignment)},
	}
	into := c.list.record.GetConsumersAssigned()
	joins := into != nil && into.Opened == epoch.Opened && into.ClientId == clientID
	c.emitEntry(&pecanv1.Record{Kind: &pecanv1.Record_ConsumersAssigned{ConsumersAssigned: entry}}, joins, [2]uint64{uint64(stream), assignment}, func(before [2]uint64, length int) {
		into.Streams = append(into.Streams, int64(uint64(stream)-before[0]))
		into.StartIndexes = appendValue(into.StartIndexes, length, start)
		into.Assignments = append(into.Assignments, int64(assignment-before[1]))
	})
}

func (c *Core) emitProduced(epoch *durable.Epoch, stream uint32, lease, count, rows uint64) {
	entry := &pecanv1.StreamsProduced{
		Opened: epoch.Opened, Streams: []int64{int64(stream)}, Leases: []int64{int64(lease)}, Counts: appendValue(nil, 0, count), RemainderRows: appendValue(nil, 0, rows),
	}
	into := c.list.record.GetStreamsProduced()
	joins := into != nil && into.Opened == epoch.Opened
	c.emitEntry(&pecanv1.Record{Kind: &pecanv1.Record_StreamsProduced{StreamsProduced: entry}}, joins, [2]uint64{uint64(stream), lease}, func(before [2]uint64, length int) {
		into.Streams = append(into.Streams, int64(uint64(stream)-before[0]))
		into.Leases = append(into.Leases, int64(lease-before[1]))
		into.Counts, into.RemainderRows = appendValue(into.Counts, length, count), appendValue(into.RemainderRows, length, rows)
	})
}

func (c *Core) emitDelivered(epoch *durable.Epoch, stream uint32, count uint64) {
	entry := &pecanv1.StreamsDelivered{Opened: epoch.Opened, Streams: []int64{int64(stream)}, Counts: appendValue(nil, 0, count)}
	into := c.list.record.GetStreamsDelivered()
	joins := into != nil && into.Opened == epoch.Opened
	c.emitEntry(&pecanv1.Record{Kind: &pecanv1.Record_StreamsDelivered{StreamsDelivered: entry}}, joins, [2]uint64{uint64(stream)}, func(before [2]uint64, length int) {
		into.Streams = append(into.Streams, int64(uint64(stream)-before[0]))
		into.Counts = appendValue(into.Counts, length, count)
	})
	for _, ended := range c.state.EndedLeases() {
		held := ended.Epoch.Stream(ended.Stream)
		c.schedule.WorkerChanged(ended.WorkerID)
		c.touchStream(ended.Epoch, ended.Stream)
		key := keyOf(epoch.Job, epoch, held)
		if worker := c.workers[ended.WorkerID]; worker != nil && !epoch.KeepsAll() && !epoch.Job.Plan.GetWritesFiles() {
			worker.stops = append(worker.stops, lateStop{key, ended.Lease})
			continue
		}
		c.stopRun(epoch.Job, ended.WorkerID, key, ended.Lease)
	}
}

// appendValue appends a value to a list of length entries. A list without values other than 0 is absent.
func appendValue(list []uint64, length int, value uint64) []uint64 {
	if len(list) == 0 && value == 0 {
		return nil
	}
	for len(list) < length {
		list = append(list, 0)
	}
	return append(list, value)
}
