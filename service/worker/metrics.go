package worker

import (
	"context"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	"github.com/pecan-ml/pecan/native/tf"
	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/proto/tensorflow"
)

// samplePeriod is how often the figures of running iterators are read.
const samplePeriod = time.Second

// profile is what a run's nodes did, as last read.
type profile []*pecanv1.NodeMetrics

// sampleLoop reads the figures of all streams. It is not part of the heartbeat, which must not wait for TensorFlow.
func (w *Worker) sampleLoop(ctx context.Context) {
	for pause(ctx, samplePeriod) {
		for _, s := range w.held() {
			s.mu.Lock()
			r := s.run
			s.mu.Unlock()
			if r == nil {
				continue
			}
			r.mu.Lock()
			it := r.iterator
			r.mu.Unlock()
			if it != nil {
				r.sample(it)
			}
		}
	}
}

// sample reads tf.data's model of the iterator. Nodes are told by their op for now where the graph has no name for them.
func (r *run) sample(it *tf.Iterator) {
	raw, err := it.Model()
	if err != nil {
		return
	}
	model := new(tensorflow.ModelProto)
	if err := proto.Unmarshal(raw, model); err != nil {
		return
	}
	nodes := make(profile, 0, len(model.GetNodes()))
	for _, node := range model.GetNodes() {
		nodes = append(nodes, &pecanv1.NodeMetrics{
			Node: node.GetName(), Op: node.GetName(), Elements: uint64(max(0, node.GetNumElements())),
			SelfCpuS: float64(max(0, node.GetProcessingTime())) / 1e9,
			BytesIn:  uint64(max(0, node.GetBytesConsumed())), BytesOut: uint64(max(0, node.GetBytesProduced())),
		})
	}
	r.mu.Lock()
	r.profile = nodes
	r.mu.Unlock()
}

func (r *run) nodes() profile {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.profile
}

// heartbeat is the load of the worker.
func (w *Worker) heartbeat() *pecanv1.WorkerHeartbeat {
	beat := &pecanv1.WorkerHeartbeat{CpuS: cpuSeconds(), ResidentBytes: residentBytes()}
	for _, s := range w.held() {
		if load := s.load(); load != nil {
			beat.Streams = append(beat.Streams, load)
		}
	}
	return beat
}

func cpuSeconds() float64 {
	var usage unix.Rusage
	if unix.Getrusage(unix.RUSAGE_SELF, &usage) != nil {
		return 0
	}
	return float64(usage.Utime.Nano()+usage.Stime.Nano()) / 1e9
}

func residentBytes() int64 {
	raw, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		return 0
	}
	fields := strings.Fields(string(raw))
	if len(fields) < 2 {
		return 0
	}
	pages, err := strconv.ParseInt(fields[1], 10, 64)
	if err != nil {
		return 0
	}
	return pages * int64(os.Getpagesize())
}
