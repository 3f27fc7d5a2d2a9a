package schedule_test

import (
	"fmt"
	"testing"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/dispatcher/core/durable"
	"github.com/pecan-ml/pecan/service/dispatcher/core/schedule"
)

// reads gives streams to a reader that does not reach these workers.
func (m *market) reads(epoch *durable.Epoch, reader string, unreachable []string, streams ...uint32) {
	m.t.Helper()
	if m.reach == nil {
		m.reach = map[string]map[string]schedule.Reach{}
	}
	m.reach[reader] = map[string]schedule.Reach{}
	for _, id := range unreachable {
		m.reach[reader][id] = schedule.Unreachable
	}
	for _, stream := range streams {
		apply(m.t, m.state, &pecanv1.Record{Kind: &pecanv1.Record_ConsumerAssigned{ConsumerAssigned: &pecanv1.ConsumerAssigned{Id: streamID(epoch, stream), ClientId: reader}}})
		m.schedule.StreamChanged(epoch, stream)
	}
}

func TestAClosingStreamWaitsForItsReaderOnly(t *testing.T) {
	m := newMarket(t, 1, 2, 8, nil)
	job := m.addPlan("j", "", 1, endless, &pecanv1.Plan{NumStreams: 4, Group: 2, BatchStrategy: pecanv1.BatchStrategy_BATCH_STRATEGY_CLOSING})
	m.schedule.Run(false)
	epoch := job.Epochs[0]
	m.lose(epoch, 4)
	m.lose(epoch, 5)
	m.reads(epoch, "far", []string{"w0", "w1"}, 4)
	m.reads(epoch, "near", nil, 5)
	m.schedule.Run(false)
	if epoch.Find(4).Worker != nil {
		t.Error("a worker that the reader does not reach got the stream")
	}
	if epoch.Find(5).Worker == nil {
		t.Error("the stream of another reader waits too")
	}
}

func TestSlotsMoveForTheReadersThatReachThem(t *testing.T) {
	m := newMarket(t, 1, 2, 4, nil)
	m.begin("early", 1)
	late := m.addPlan("late", "", 1, endless, &pecanv1.Plan{NumStreams: 8})
	m.reads(late.Epochs[0], "far", []string{"w0", "w1"}, 0, 1, 2, 3, 4, 5)
	m.reads(late.Epochs[0], "near", nil, 6, 7)
	m.run(1, nil)
	moved := 0
	for range 5 {
		moved += m.preempt(all, all)
	}
	if n := m.schedule.OfJob(late).Running; n != 2 || moved != 1 {
		t.Errorf("%d streams moved, and %d run of the late job", moved, n)
	}
}

func TestSlotsMoveForAReaderThatReachesNoMember(t *testing.T) {
	m := newMarket(t, 1, 2, 4, nil)
	m.begin("early", 1)
	late := m.add("late", "", 1, endless)
	m.members["late"] = map[string]bool{"w0": true}
	m.reads(late.Epochs[0], "far", []string{"w0"}, 0, 1, 2, 3)
	m.reach[""] = m.reach["far"]
	m.run(1, nil)
	for range 5 {
		m.preempt(all, all)
	}
	if n := m.schedule.OfJob(late).Running; n != 4 {
		t.Errorf("%d streams run of the late job", n)
	}
}

// The reader of a shard lost the route to the worker at the shard's position.
func TestAShardWaitsForItsPositionOnlyWhileTheServiceStarts(t *testing.T) {
	m := newMarket(t, 1, 0, 0, nil)
	m.schedule = schedule.New(m.host, m.state, 2, nil)
	for i := range 2 {
		m.schedule.SetWorker(schedule.Worker{ID: fmt.Sprint("w", i), Usable: true, MaxStreams: 4, Order: uint64(i), Position: i})
	}
	job := m.addPlan("j", "", 1, endless, &pecanv1.Plan{NumStreams: 4})
	job.Options.Sharding = pecanv1.Sharding_SHARDING_FILE
	m.reads(job.Epochs[0], "far", []string{"w0"}, 0)
	m.schedule.Run(false)
	for stream, want := range []string{"w1", "w1", "w0", "w1"} {
		if id := job.Epochs[0].Find(uint32(stream)).Worker.GetWorkerId(); id != want {
			t.Errorf("stream %d runs on worker %q instead of %q", stream, id, want)
		}
	}
}
