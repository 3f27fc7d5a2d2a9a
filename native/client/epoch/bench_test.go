package epoch

import (
	"fmt"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/pecan-ml/pecan/native/client/element"
	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/proto/reason"
)

// BenchmarkEpoch measures what the state of an epoch costs per call, where 16 of S streams are open and all others have
// ended.
func BenchmarkEpoch(b *testing.B) {
	for _, total := range []uint32{16, 1024, 65536} {
		e, update := mostlyEnded(total)
		b.Run(fmt.Sprintf("dequeue/S=%d", total), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, found, _ := e.Dequeue(1, false); found != ElementFailed {
					b.Fatal(found)
				}
				arrive(e, total-1)
			}
		})
		b.Run(fmt.Sprintf("update/S=%d", total), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				update.Version++
				e.apply(update, false)
			}
			b.ReportMetric(float64(proto.Size(update)), "bytes")
		})
		b.Run(fmt.Sprintf("position/S=%d", total), func(b *testing.B) {
			b.ReportAllocs()
			size := 0
			for b.Loop() {
				size = proto.Size(e.Position())
			}
			b.ReportMetric(float64(size), "bytes")
		})
	}
}

// mostlyEnded returns an epoch in which 16 streams are open and one of them has an element, and an update that lists them.
func mostlyEnded(total uint32) (*Epoch, *pecanv1.EpochUpdate) {
	e := testEpoch(&pecanv1.Plan{NumStreams: int32(total), Group: 16})
	update := &pecanv1.EpochUpdate{TotalStreams: total, StreamsFinal: true, Full: true, Workers: []*pecanv1.WorkerAddress{{WorkerId: "w"}}}
	for number := range total {
		e.apply(&pecanv1.EpochUpdate{Full: number == 0, Version: uint64(number + 1), Workers: update.Workers, TotalStreams: total, StreamsFinal: true, Streams: []*pecanv1.ConsumerStream{
			{Stream: number, Lease: 1, Assignment: 1, WorkerNumber: 1}}}, number == 0)
		if number < total-16 {
			st := e.streams.find(number)
			st.next = 100
			st.end()
			e.settle(st)
		} else {
			update.Streams = append(update.Streams, &pecanv1.ConsumerStream{Stream: number, Lease: 1, Assignment: 1, WorkerNumber: 1})
		}
	}
	update.Version = uint64(total)
	arrive(e, total-1)
	return e, update
}

// testEpoch returns an epoch that is open, without a dispatcher that answers.
func testEpoch(plan *pecanv1.Plan) *Epoch {
	e := &Epoch{
		Consumer: &Consumer{Plan: plan, Request: &pecanv1.CreateJobRequest{}}, opened: true, options: Options{NoPrefetch: true, MaxOutstandingBytes: 64 << 20},
		Notify: make(chan struct{}, 1), kick: make(chan struct{}, 1),
	}
	// Nothing is delivered: the reports wait.
	e.reports.queued = true
	return e
}

// arrive puts the next element, which failed, into the queue of a stream.
func arrive(e *Epoch, number uint32) {
	st := e.streamOf(number)
	st.queue = append(st.queue, element.Entry{First: st.next, Elements: 1, Err: reason.New(reason.Internal, "failed")})
	st.next++
	e.settle(st)
}
