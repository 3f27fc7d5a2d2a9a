package worker

import (
	"context"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/graph/rewrite"
	"github.com/pecan-ml/pecan/service/graph/split"
	"github.com/pecan-ml/pecan/service/worker/dataset"
)

// besides has the graphs of a store, and two streams that never end. One of them has no second element.
type besides struct{ byName }

func (b besides) Instantiate(ctx context.Context, name string, plan *pecanv1.Plan, at rewrite.At) (*rewrite.StreamGraphs, error) {
	if name == "endless" || name == "starved" {
		return files{}.Instantiate(ctx, name, plan, at)
	}
	return b.byName.Instantiate(ctx, name, plan, at)
}

// Short streams run inline while the worker has a stream that computes for each core, and have the same elements.
func TestShortStreamsRunInlineWhereEveryCoreComputes(t *testing.T) {
	w := startWorker(t, func(c *Config) { c.MaxStreams = runtime.NumCPU() })
	graphs := dataset.NewStore(func(_ context.Context, name string) ([]byte, error) {
		return os.ReadFile(filepath.Join("testdata", "opened_"+name+".graph"))
	})
	parsed, err := graphs.Get(t.Context(), "images")
	if err != nil {
		t.Fatal(err)
	}
	plan, err := split.MakePlan(parsed, &pecanv1.JobOptions{}, split.Env{})
	if err != nil {
		t.Fatal(err)
	}
	useGraphs(w, besides{byName{graphs}})
	lease := uint64(0)
	allowed := true
	run := func(stream uint32) string {
		lease++
		o := startCommand("images")
		o.MayRunInline = allowed
		o.Id.Epoch, o.Id.Stream, o.Plan = lease, stream, plan
		return read(t, w, o, lease)
	}
	want := map[uint32]string{}
	const streams = 4
	for n := range uint32(3 * streams) {
		want[n%streams] = run(n % streams)
	}
	if runtime.NumCPU() > 1 && w.streams.Load().InlineStreams > 0 {
		t.Error("a stream ran inline though the other cores had none")
	}
	besideThem := func(name string, prefetch bool) {
		for core := range runtime.NumCPU() - 1 {
			o := startCommand(name)
			o.Id.JobId, o.Id.Stream, o.Lease, o.Prefetch = name, uint32(core), uint64(1000+core), prefetch
			w.streams.Start(o)
			waitFor(t, "its first element", func() bool { return loadOf(w, o).GetProduced() > 0 })
		}
	}
	besideThem("endless", true)
	for n := range uint32(2 * streams) {
		run(n % streams)
	}
	if runtime.NumCPU() > 1 && w.streams.Load().InlineStreams > 0 {
		t.Error("a stream ran inline though the streams of the other cores waited for their readers")
	}
	for core := range runtime.NumCPU() - 1 {
		w.streams.Stop(&pecanv1.StopStream{Id: &pecanv1.StreamId{JobId: "endless", Epoch: 1, Stream: uint32(core)}})
	}
	besideThem("starved", false)
	for n := range uint32(4 * streams) {
		if got := run(n % streams); got != want[n%streams] {
			t.Errorf("stream %d has other elements", n%streams)
		}
	}
	inline := w.streams.Load().InlineStreams
	if inline == 0 {
		t.Error("no stream ran inline")
	}
	// The totals of the job name what was measured in them.
	metrics := w.streams.Totals.Unreported("job")
	elements := func(nodes []*pecanv1.NodeMetrics) (most uint64) {
		for _, node := range nodes {
			most = max(most, node.Elements)
		}
		return most
	}
	if all, part := elements(metrics.Nodes), elements(metrics.Inline); part*uint64(lease) != all*inline {
		t.Errorf("%d of %d streams ran inline, but %d of %d elements", inline, lease, part, all)
	}
	allowed = false
	for n := range uint32(2 * streams) {
		run(n % streams)
	}
	if w.streams.Load().InlineStreams != inline {
		t.Error("a stream ran inline though the costs of its steps may be compared")
	}
}
