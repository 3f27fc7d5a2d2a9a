package worker

import (
	"fmt"
	"slices"
	"testing"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
)

// Reports that follow each other become lists: a start stays before the end of its stream, and reports pass no message
// of another kind.
func TestReportsThatFollowEachOtherBecomeLists(t *testing.T) {
	id := func(epoch uint64, stream uint32) *pecanv1.StreamId {
		return &pecanv1.StreamId{JobId: "j", Epoch: epoch, Stream: stream}
	}
	started := func(epoch uint64, stream uint32, lease uint64) *pecanv1.WorkerMessage {
		return &pecanv1.WorkerMessage{Kind: &pecanv1.WorkerMessage_Started{Started: &pecanv1.StreamStarted{Id: id(epoch, stream), Lease: lease}}}
	}
	ended := func(epoch uint64, stream uint32, lease, count uint64) *pecanv1.WorkerMessage {
		return &pecanv1.WorkerMessage{Kind: &pecanv1.WorkerMessage_Ended{Ended: &pecanv1.StreamEnded{Id: id(epoch, stream), Lease: lease, Count: count, RemainderRows: uint64(stream)}}}
	}
	metrics := &pecanv1.WorkerMessage{Kind: &pecanv1.WorkerMessage_Metrics{Metrics: &pecanv1.JobMetrics{}}}
	messages := []*pecanv1.WorkerMessage{ended(1, 7, 40, 3), started(1, 2, 41), ended(1, 2, 41, 5), started(2, 0, 42), metrics, ended(2, 0, 42, 1), started(1, 9, 39)}
	var got []string
	for _, message := range mergeReports(messages) {
		if list := message.GetStreamsStarted(); list != nil {
			got = append(got, fmt.Sprint("started ", list.Epoch, list.Streams, list.Leases))
		} else if list := message.GetStreamsEnded(); list != nil {
			got = append(got, fmt.Sprint("ended ", list.Epoch, list.Streams, list.Leases, list.Counts, list.RemainderRows))
		} else {
			got = append(got, "metrics")
		}
	}
	want := []string{"started 1 [2] [41]", "ended 1 [7 -5] [40 1] [3 5] [7 2]", "started 2 [0] [42]", "metrics", "ended 2 [0] [42] [1] [0]", "started 1 [9] [39]"}
	if !slices.Equal(got, want) {
		t.Fatalf("got\n%q\ninstead of\n%q", got, want)
	}
}
