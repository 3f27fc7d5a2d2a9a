package dispatcher_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/proto/reason"
	"github.com/pecan-ml/pecan/service/dispatcher"
	"github.com/pecan-ml/pecan/service/graph"
	"github.com/pecan-ml/pecan/service/graph/graphtest"
	graphorder "github.com/pecan-ml/pecan/service/graph/order"
	"github.com/pecan-ml/pecan/service/graph/split"
)

const (
	dtInt32 = 3
	dtInt64 = 9
)

func graphOf(t *testing.T, name string) []byte {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("testdata", name+".graph"))
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func specOf(dtype int32, dims ...int64) *pecanv1.DatasetSpec {
	return &pecanv1.DatasetSpec{Components: []*pecanv1.ComponentSpec{{Dtype: dtype, Dims: dims}}, ElementSpec: []byte("spec"), TensorflowVersion: "2.21.0"}
}

func (s *service) registerGraph(graph []byte, spec *pecanv1.DatasetSpec) (*pecanv1.RegisterDatasetResponse, error) {
	return s.upload(&pecanv1.RegisterDatasetRequest_Header{Spec: spec, GraphBytes: int64(len(graph))}, graph)
}

// An epoch that reads the cache saves the cost of these steps.
func TestThePlanNamesTheStepsThatACacheReplaces(t *testing.T) {
	plan, err := dispatcher.NewGraphs(dispatcher.DefaultConfig()).Plan(graphtest.Read(t, "cached"), &pecanv1.JobOptions{Mode: pecanv1.Mode_MODE_EXACTLY_ONCE}, split.Env{})
	if want := []string{"TakeDataset/_6", "MapDataset/_4", "RangeDataset/_3"}; err != nil || !slices.Equal(plan.GetCache().GetUpstream(), want) {
		t.Errorf("%v, %v; want %v", plan.GetCache(), err, want)
	}
}

func TestRealGraphsAreRegisteredPlannedAndFetched(t *testing.T) {
	cases := map[string]struct {
		spec    *pecanv1.DatasetSpec
		streams uint32
		check   func(*pecanv1.Plan) bool
	}{
		"range": {spec: specOf(dtInt64), check: func(p *pecanv1.Plan) bool { return p.NumStreams > 1 && p.Cardinality == 100 }},
		"range_batch": {spec: specOf(dtInt64, -1), check: func(p *pecanv1.Plan) bool {
			return p.NumStreams > 1 && p.BatchStrategy == pecanv1.BatchStrategy_BATCH_STRATEGY_EXACT
		}},
		"filter_batch_map": {spec: specOf(dtInt64, -1), check: func(p *pecanv1.Plan) bool { return p.NumStreams >= 1 }},
		"slices":           {spec: specOf(dtInt32), check: func(p *pecanv1.Plan) bool { return p.NumStreams > 1 }},
	}
	cfg := dispatcher.DefaultConfig()
	s := startService(t, serviceOptions{graphs: dispatcher.NewGraphs(cfg)})
	w := s.worker(workerHello("w", 64))
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			graph := graphOf(t, name)
			first, err := s.registerGraph(graph, c.spec)
			if err != nil {
				t.Fatal(err)
			}
			again, err := s.registerGraph(graph, c.spec)
			if err != nil || again.Created || again.DatasetId != first.DatasetId || first.DatasetId != first.Fingerprint {
				t.Fatalf("registered again: %v %v", again, err)
			}
			job, err := s.client.CreateJob(s.ctx(), &pecanv1.CreateJobRequest{RequestId: "r", ClientId: "c-" + name, DatasetId: first.DatasetId})
			if err != nil {
				t.Fatal(err)
			}
			if !c.check(job.Plan) {
				t.Fatalf("plan %v", job.Plan)
			}
			s.open("c-"+name, job.JobId, 0)
			start := w.start()
			fetched := s.fetch(start.Fingerprint)
			if string(fetched) != string(graph) {
				t.Fatalf("fetched %d bytes, registered %d", len(fetched), len(graph))
			}
			if !proto.Equal(start.Plan, job.Plan) || len(start.Components) != 1 {
				t.Fatalf("start %v", start)
			}
			if _, err := s.client.ClientGoodbye(s.ctx(), &pecanv1.ClientGoodbyeRequest{ClientId: "c-" + name}); err != nil {
				t.Fatal(err)
			}
			drainStops(w)
		})
	}
}

// drainStops takes commands until the epoch of the goodbye is over.
func drainStops(w *worker) {
	for !w.next().GetStopStreams().GetOver() {
	}
}

func (s *service) fetch(fingerprint string) []byte {
	s.t.Helper()
	stream, err := s.client.FetchGraph(s.ctx(), &pecanv1.FetchGraphRequest{Fingerprint: fingerprint})
	if err != nil {
		s.t.Fatal(err)
	}
	var graph []byte
	for {
		part, err := stream.Recv()
		if err != nil {
			s.t.Fatalf("fetch after %d bytes: %v", len(graph), err)
		}
		graph = append(graph, part.Chunk...)
		if int64(len(graph)) == part.TotalBytes {
			return graph
		}
	}
}

func TestBadGraphsAreRefusedAtRegistration(t *testing.T) {
	good := graphOf(t, "range")
	cases := map[string]struct {
		graph []byte
		spec  *pecanv1.DatasetSpec
		want  reason.Reason
	}{
		"no graph at all":      {[]byte("certainly no graph"), specOf(dtInt64), reason.GraphParse},
		"a truncated graph":    {good[:len(good)/2], specOf(dtInt64), reason.GraphParse},
		"another dtype":        {good, specOf(dtInt32), reason.SpecMismatch},
		"another rank":         {good, specOf(dtInt64, 3), reason.SpecMismatch},
		"no components":        {good, &pecanv1.DatasetSpec{}, reason.SpecMismatch},
		"an impossible dtype":  {good, specOf(-4), reason.SpecMismatch},
		"overflowing dims":     {good, specOf(dtInt64, 1<<62, 1<<62), reason.SpecMismatch},
		"a Python function":    {graphOf(t, "py_function"), &pecanv1.DatasetSpec{Components: []*pecanv1.ComponentSpec{{Dtype: dtInt64, UnknownRank: true}}}, reason.PyFunction},
		"a strange compressor": {good, &pecanv1.DatasetSpec{Components: specOf(dtInt64).Components, Compression: "zip"}, reason.BadArgument},
	}
	s := startService(t, serviceOptions{graphs: dispatcher.NewGraphs(dispatcher.DefaultConfig())})
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			_, err := s.registerGraph(c.graph, c.spec)
			wantReason(t, err, c.want)
		})
	}
	status, err := s.client.Status(s.ctx(), &pecanv1.StatusRequest{})
	if err != nil || len(status.Datasets) != 0 {
		t.Fatalf("after refusals: %v %v", status.GetDatasets(), err)
	}
}

// A removed repeat runs in no stream. Nothing would ever be measured of it, and a decision on caches waits for each step.
func TestThePlanListsTheStepsOfOneEpoch(t *testing.T) {
	planner := dispatcher.NewGraphs(dispatcher.DefaultConfig())
	plan, err := planner.Plan(graphtest.Read(t, "cached_repeated"), &pecanv1.JobOptions{Mode: pecanv1.Mode_MODE_EXACTLY_ONCE}, split.Env{})
	if err != nil || plan.Repeat != 3 || len(plan.Steps) == 0 {
		t.Fatal(plan, err)
	}
	for _, step := range plan.Steps {
		if strings.Contains(step.Node, "Repeat") {
			t.Error(step.Node, "is listed")
		}
	}
}

// An order is refused for a cache if a shuffle that the plan moved downstream would run before its elements are stored.
func TestThePlanSaysAfterWhichCachedStepShufflesRun(t *testing.T) {
	planner := dispatcher.NewGraphs(dispatcher.DefaultConfig())
	for name, late := range map[string]bool{"parts_records_shuffled": true, "cached": false} {
		plan, err := planner.Plan(graphtest.Read(t, name), &pecanv1.JobOptions{Mode: pecanv1.Mode_MODE_EXACTLY_ONCE}, split.Env{})
		if after := plan.GetCache().GetLateAfter(); err != nil || (after != "") != late || late && after != plan.GetCut().GetLateAfter() {
			t.Errorf("%s: %v, %v", name, plan.GetCache(), err)
		}
	}
}

// Two steps next to each other change places, in each dataset and at each step that may be cached. The key of the cache follows if both
// are upstream of it. If one is, no step gives the elements. Steps in functions count for the step that calls them, and steps of other
// branches do not.
func TestTheKeyOfACacheFollowsEachOrderOfItsSteps(t *testing.T) {
	files, err := filepath.Glob("../graph/testdata/*.pb")
	if err != nil {
		t.Fatal(err)
	}
	planner := dispatcher.NewGraphs(dispatcher.DefaultConfig())
	seen := map[string]int{}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		g, err := graph.Parse(data, graph.Limits{})
		if err != nil {
			continue
		}
		plan, err := planner.Plan(data, &pecanv1.JobOptions{Mode: pecanv1.Mode_MODE_EXACTLY_ONCE, Cache: pecanv1.Cache_CACHE_AUTO}, split.Env{})
		if err != nil {
			continue
		}
		names := graphorder.Names(g)
		for _, candidate := range plan.GetCacheCandidates() {
			cached := candidate.Plan
			if cached == nil || names == nil {
				continue
			}
			upstream := upstreamIn(g, cached.Node)
			if in, last := cached.InOrder(names); in.GetKey() != cached.Key || last != cached.Node {
				t.Errorf("%s: in the registered order %s is cached as %v after %s", file, cached.Node, in, last)
			}
			for i := 1; i < len(names); i++ {
				swapped := slices.Clone(names)
				swapped[i-1], swapped[i] = swapped[i], swapped[i-1]
				if _, err := graphorder.Reorder(g, swapped); err != nil {
					continue
				}
				in, last := cached.InOrder(swapped)
				kind := "across"
				switch below, above := upstream[graphorder.Outermost(names[i-1])], upstream[graphorder.Outermost(names[i])]; {
				case below != above:
					if in != nil {
						t.Errorf("%s: %s and %s change places across %s, which is cached as %v", file, names[i-1], names[i], cached.Node, in)
					}
				case !below:
					if kind = "downstream"; in.GetKey() != cached.Key {
						t.Errorf("%s: %s and %s change places downstream of %s, which is cached as %v", file, names[i-1], names[i], cached.Node, in)
					}
				default:
					want := cached.Node
					if names[i] == want {
						want = names[i-1]
					}
					kind = "upstream"
					if graphorder.Outermost(names[i]) != names[i] {
						kind = "in a function"
					} else if cached.Before > 0 {
						kind = "in a later branch"
					}
					if late := cached.LateAfter != "" && cached.LateAfter != want; late != (in == nil) || !late && (in.Key == cached.Key || last != want) {
						t.Errorf("%s: %s and %s change places upstream of %s, which is cached as %v after %q", file, names[i-1], names[i], cached.Node, in, last)
					}
				}
				seen[kind]++
			}
		}
	}
	for _, kind := range []string{"across", "downstream", "upstream", "in a function", "in a later branch"} {
		if seen[kind] == 0 {
			t.Errorf("no steps change places %s: %v", kind, seen)
		}
	}
}

// upstreamIn returns the names of a step and of all steps upstream of it.
func upstreamIn(g *graph.Graph, node string) map[string]bool {
	names := map[string]bool{}
	root, _ := g.Steps()
	root.Walk(func(s *graph.Step) {
		if s.Node.GetName() == node {
			s.Walk(func(u *graph.Step) { names[u.Node.GetName()] = true })
		}
	})
	return names
}
