package core_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/dispatcher/core"
	"github.com/pecan-ml/pecan/service/dispatcher/core/durable"
	"github.com/pecan-ml/pecan/service/dispatcher/core/rollout"
)

// X1: whatever peers send, in whatever order, no decision ends the core. A record that does not fit the state
// would end the dispatcher for all jobs. The replayed journal has the same state.
func TestArbitraryMessagesDoNotEndTheCore(t *testing.T) {
	tried, decided, judged, evicted := 0, 0, 0, 0
	for seed := range uint64(100) {
		t.Run(fmt.Sprintf("seed_%d", seed), func(t *testing.T) {
			p := newStrangers(t, seed)
			for i := range 500 {
				p.now += time.Duration(p.rng.IntN(400)) * time.Millisecond
				p.answer(p.decide(p.input()))
				if i%10 == 9 {
					p.decide(&pecanv1.ChangeCacheRequest{Key: "k", Change: pecanv1.ChangeCacheRequest_Change(i / 10 % 5)})
				}
			}
			p.core.Status(p.now)
			shown, err := p.core.Caches(&pecanv1.CachesRequest{})
			for _, cache := range shown.GetCaches() {
				if _, err := p.core.Caches(&pecanv1.CachesRequest{Key: cache.Key, Segments: true}); err != nil {
					t.Error(err)
				}
			}
			if err != nil {
				t.Error(err)
			}
			p.checkReplay()
			tried, decided = tried+p.tried, decided+len(p.core.State().Snapshot().Orders)
			for _, record := range p.records {
				if record.GetOrderJudged() != nil {
					judged++
				}
				if record.GetCacheEvicted() != nil {
					evicted++
				}
			}
		})
	}
	if tried == 0 || decided == 0 || judged == 0 || evicted == 0 {
		t.Errorf("%d orders were tried, %d decided, %d judged; %d caches were evicted", tried, decided, judged, evicted)
	}
}

// hostilePeers are clients and workers that send well-formed messages with arbitrary contents.
type hostilePeers struct {
	*script
	rng               *rand.Rand
	sessions, watches uint64
	// tried counts orders that were tried.
	tried int
}

func newStrangers(t *testing.T, seed uint64) *hostilePeers {
	p := &hostilePeers{script: newScript(t), rng: rand.New(rand.NewPCG(seed, 2))}
	p.cfg.CacheQuota, p.cfg.CacheTTL = 8, 20*time.Second
	p.core = core.New(p.cfg, durable.NewState())
	p.decide(core.Start{ClusterID: "c", UnixS: p.unix()})
	p.decide(core.AddDataset{WantedID: "d", Fingerprint: "f", Spec: &pecanv1.DatasetSpec{}})
	return p
}

func one[T any](p *hostilePeers, of ...T) T { return of[p.rng.IntN(len(of))] }

func (p *hostilePeers) chance(n int) bool { return p.rng.IntN(n) == 0 }

func (p *hostilePeers) input() any {
	switch p.rng.IntN(13) {
	case 12:
		return p.learned()
	case 11:
		return p.metrics()
	case 0:
		return p.newJob()
	case 1, 2:
		return p.opening()
	case 3:
		p.sessions++
		hello := &pecanv1.WorkerHello{}
		p.fill(hello)
		// Addresses and limits are checked before the core sees them.
		hello.Address, hello.MaxStreams = address(one(p, "w1", "w2", "w3")), 1+p.rng.Int32N(4)
		return core.Hello{Session: core.SessionID(p.sessions), Message: hello}
	case 4, 5:
		message := &pecanv1.WorkerMessage{}
		p.fill(message)
		if p.chance(10) {
			// Kinds at random name a segment that a cache takes too rarely to reach the evictions.
			written := &pecanv1.CacheSegmentWritten{Segment: &pecanv1.CacheSegment{}}
			p.fill(written.Segment)
			message.Kind = &pecanv1.WorkerMessage_CacheSegmentWritten{CacheSegmentWritten: written}
		}
		if failed := message.GetFailed(); failed != nil && failed.Error == nil {
			failed.Error = &pecanv1.ErrorDetail{Code: 14}
		}
		return core.FromWorker{Session: core.SessionID(p.sessions - min(p.sessions, p.rng.Uint64N(4))), Message: message}
	case 6:
		p.watches++
		watch := &pecanv1.WatchEpochRequest{}
		p.fill(watch)
		return core.Watch{ID: core.WatchID(p.watches), Request: watch}
	case 7:
		return one[any](p, core.Tick{}, core.Tick{}, core.Unwatch{ID: core.WatchID(p.watches)}, core.SessionEnded{Session: core.SessionID(p.sessions)})
	}
	request := one[proto.Message](p, &pecanv1.AdoptEpochRequest{}, &pecanv1.FinishStreamsRequest{}, &pecanv1.FinishStreamsRequest{}, &pecanv1.ReleaseStreamsRequest{}, &pecanv1.ReleaseStreamsRequest{}, &pecanv1.MarkElementsRequest{},
		&pecanv1.ReportCrashRequest{}, &pecanv1.ReportWorkerRequest{}, &pecanv1.CloseEpochRequest{}, &pecanv1.ClientHeartbeatRequest{})
	if p.chance(40) {
		request = &pecanv1.ClientGoodbyeRequest{}
	}
	p.fill(request)
	return request
}

// answer plans the requested orders, and mostly lets workers answer trials.
func (p *hostilePeers) answer(result core.Result) {
	for _, effect := range result.Effects {
		if asked, ok := effect.(rollout.PlanRequest); ok && !p.chance(5) {
			p.answer(p.decide(rollout.Planned{
				Number: asked.Number, Order: one(p, nil, []string{"a", "b"}, []string{"b", "a"}, []string{"b", "b"}), Why: "why", PredictedBefore: 2, PredictedAfter: one(p, 1, 3, math.NaN()),
				Steps: []*pecanv1.ExplainedStep{{Node: "a"}, {Node: "b"}}, Retry: one(p, "", "", "", "later"),
			}))
		}
		command, ok := effect.(core.Command)
		if try := command.Message.GetTryOrder(); ok && try != nil && !p.chance(5) {
			report := &pecanv1.OrderTried{}
			p.fill(report)
			report.Id = try.Id
			if report.Trial != nil && p.chance(2) {
				report.Trial.Refused = ""
			}
			p.tried++
			p.answer(p.decide(core.FromWorker{Session: command.Session, Message: &pecanv1.WorkerMessage{Kind: &pecanv1.WorkerMessage_OrderTried{OrderTried: report}}}))
		}
	}
}

// metrics gives metrics of an existing job, large enough to plan from.
func (p *hostilePeers) metrics() any {
	report := &pecanv1.JobMetrics{Generation: 1, Sequence: p.rng.Uint64N(1000), Nodes: nodes([]string{"a:9000:900", "b:9000:9"})}
	if p.chance(4) {
		report.Nodes = append(report.Nodes, one(p, &pecanv1.NodeMetrics{}, &pecanv1.NodeMetrics{Node: "c", SelfCpuS: math.NaN()}, &pecanv1.NodeMetrics{Node: "d", SelfCpuS: -1}))
	}
	report.Ordered = nodes(one(p, nil, []string{"a:3000:30", "b:3000:3"}, []string{"a:3000:600", "b:9999:3"}))
	if p.chance(4) {
		report.OrderedFailed = 1
	}
	if jobs := p.core.State().Jobs(); len(jobs) > 0 {
		report.JobId = one(p, jobs...).JobId
	}
	return core.FromWorker{Session: core.SessionID(p.sessions), Message: &pecanv1.WorkerMessage{Kind: &pecanv1.WorkerMessage_Metrics{Metrics: report}}}
}

// learned gives what another dispatcher may have learned of the graph.
func (p *hostilePeers) learned() any {
	if p.chance(2) {
		request := &pecanv1.MergeLearnedRequest{}
		p.fill(request)
		return request
	}
	return merged(args{
		"fingerprint": one(p, "f", "other"), "plan": "", "order": one(p, "", "a,b", "b,a"), "stage": one(p, "", "piloted", "rolled_back"),
		"nodes": one(p, "a:9000:900,b:9000:9", "a:1:1"), "remote": "3", "job": one(p, "j1", "j2", "x"), "epochs": one(p, "1", "2"), "at": one(p, "1", "9"),
	})
}

func address(worker string) *pecanv1.WorkerAddress {
	return &pecanv1.WorkerAddress{WorkerId: worker, Tcp: worker + ":1"}
}

// newJob returns a job of any mode and of any plan that the analysis may make for it.
func (p *hostilePeers) newJob() core.CreateJob {
	p.jobs++
	request := &pecanv1.CreateJobRequest{}
	p.fill(request)
	mode := pecanv1.Mode(1 + p.rng.Int32N(5))
	plan := &pecanv1.Plan{NumStreams: 2, Mode: mode, Cardinality: int64(p.rng.IntN(9)) - 2, Repeat: int64(p.rng.IntN(4)) - 1, AllOpen: p.chance(3), WritesFiles: p.chance(5)}
	plan.Determinism = one(p, pecanv1.DeterminismClass_DETERMINISM_CLASS_A, pecanv1.DeterminismClass_DETERMINISM_CLASS_C)
	plan.Resume = one(p, nil, &pecanv1.Resume{Strategy: pecanv1.Resume_SEEK})
	if mode == pecanv1.Mode_MODE_OFF {
		plan.NumStreams = 0
	} else if p.chance(3) {
		plan.BatchStrategy = pecanv1.BatchStrategy_BATCH_STRATEGY_CLOSING
	} else if p.chance(2) {
		plan.Cache = &pecanv1.CachePlan{Key: "k"}
	}
	request.DatasetId, request.Options = "d", &pecanv1.JobOptions{
		Mode: mode, Order: pecanv1.Order(p.rng.Int32N(5)), OrderTolerance: pecanv1.OrderTolerance(p.rng.Int32N(5)),
	}
	return core.CreateJob{Request: request, JobID: fmt.Sprint("j", p.jobs), Plan: plan}
}

// opening mostly opens the next pass of an existing job.
func (p *hostilePeers) opening() *pecanv1.OpenEpochRequest {
	request := &pecanv1.OpenEpochRequest{}
	p.fill(request)
	if !p.chance(4) {
		request.Position = nil
	} else if request.Position != nil {
		request.Position.Turn, request.Position.Ended = 0, nil
		if !p.chance(8) {
			request.Position.EndedRuns, request.Position.EndedBits, request.Position.Begun, request.Position.BegunNext = nil, nil, nil, nil
		}
	}
	if jobs := p.core.State().Jobs(); len(jobs) > 0 && !p.chance(4) {
		job := one(p, jobs...)
		request.JobId, request.Pass = job.JobId, job.NextEpoch
		if len(job.ClientIds) > 0 {
			request.ClientId = one(p, job.ClientIds...)
		}
	}
	return request
}

// stream returns an existing stream, if there is one.
func (p *hostilePeers) stream() (*pecanv1.StreamId, *pecanv1.StoredStream) {
	id, stream, n := &pecanv1.StreamId{JobId: "j1"}, &pecanv1.StoredStream{}, 0
	for _, job := range p.core.State().Jobs() {
		for _, epoch := range job.Epochs {
			for number := range epoch.Total() {
				s := epoch.Stream(number)
				if n++; p.chance(n) {
					id, stream = &pecanv1.StreamId{JobId: job.JobId, Epoch: epoch.Epoch, Stream: s.Stream}, s
				}
			}
		}
	}
	return id, stream
}

// fill fills a message's fields at random, and mostly those of one stream if it names one.
func (p *hostilePeers) fill(message proto.Message) { p.fillIn(message.ProtoReflect(), 4) }

func (p *hostilePeers) fillIn(m protoreflect.Message, depth int) {
	fields, oneofs := m.Descriptor().Fields(), m.Descriptor().Oneofs()
	for i := range fields.Len() {
		if f := fields.Get(i); f.ContainingOneof() == nil && !p.chance(6) {
			p.set(m, f, depth)
		}
	}
	for i := range oneofs.Len() {
		of := oneofs.Get(i).Fields()
		p.set(m, of.Get(p.rng.IntN(of.Len())), depth)
	}
	if p.chance(8) {
		return
	}
	id, stream := p.stream()
	own := map[protoreflect.Name]any{
		"id": id.ProtoReflect(), "lease": stream.Lease, "worker_id": stream.Worker.GetWorkerId(), "client_id": stream.Consumer,
		"assignment": stream.Assignment, "count": stream.Count, "next_index": stream.Count,
		"job_id": id.JobId, "epoch": id.Epoch, "stream": id.Stream,
	}
	if f := fields.ByName("id"); f != nil && f.Message() != nil {
		p.setOwn(m, own, "id", "lease", "worker_id", "client_id", "assignment", "count", "next_index")
	}
	switch list := fields.ByName("streams"); m.Interface().(type) {
	case *pecanv1.FinishStreamsRequest, *pecanv1.ReleaseStreamsRequest:
		p.setOwn(m, own, "client_id", "job_id", "epoch")
		one := m.Mutable(list).List().AppendMutable().Message()
		p.setOwn(one, own, "stream", "lease", "assignment", "count", "next_index")
	}
}

// setOwn sets fields of a message to what belongs to a stream that exists.
func (p *hostilePeers) setOwn(m protoreflect.Message, own map[protoreflect.Name]any, names ...protoreflect.Name) {
	for _, name := range names {
		if f := m.Descriptor().Fields().ByName(name); f != nil && !p.chance(6) {
			m.Set(f, protoreflect.ValueOf(own[name]))
		}
	}
}

func (p *hostilePeers) set(m protoreflect.Message, f protoreflect.FieldDescriptor, depth int) {
	inner := func(value protoreflect.Value) protoreflect.Value {
		if depth > 0 {
			p.fillIn(value.Message(), depth-1)
		}
		return value
	}
	switch {
	case f.IsList():
		list := m.Mutable(f).List()
		for range p.rng.IntN(4) {
			if f.Message() != nil {
				list.Append(inner(list.NewElement()))
			} else {
				list.Append(p.scalar(f))
			}
		}
	case f.Message() != nil:
		m.Set(f, inner(m.NewField(f)))
	default:
		m.Set(f, p.scalar(f))
	}
}

func (p *hostilePeers) scalar(f protoreflect.FieldDescriptor) protoreflect.Value {
	number := p.rng.Uint64N(6)
	if p.chance(10) {
		number = one[uint64](p, 1<<64-1, 1<<63, 1<<62, 1<<62+1, 1<<32)
	}
	if (f.Name() == "streams" || f.Name() == "parts") && !f.IsList() {
		// Every plan has this number, and its cache.
		number = 2
	}
	switch f.Kind() {
	case protoreflect.BoolKind:
		return protoreflect.ValueOfBool(p.chance(3))
	case protoreflect.EnumKind:
		return protoreflect.ValueOfEnum(protoreflect.EnumNumber(p.rng.IntN(5)))
	case protoreflect.Int32Kind:
		return protoreflect.ValueOfInt32(int32(number))
	case protoreflect.Int64Kind, protoreflect.Sint64Kind:
		return protoreflect.ValueOfInt64(int64(number))
	case protoreflect.Uint32Kind:
		return protoreflect.ValueOfUint32(uint32(number))
	case protoreflect.Uint64Kind:
		return protoreflect.ValueOfUint64(number)
	case protoreflect.DoubleKind:
		return protoreflect.ValueOfFloat64(float64(number))
	case protoreflect.BytesKind:
		return protoreflect.ValueOfBytes([]byte("x"))
	}
	switch f.Name() {
	case "client_id":
		return protoreflect.ValueOfString(one(p, "a", "b", "nobody"))
	case "job_id", "job_ids":
		return protoreflect.ValueOfString(fmt.Sprint("j", p.rng.IntN(p.jobs+2)))
	case "worker_id":
		return protoreflect.ValueOfString(one(p, "w1", "w2", "nobody"))
	case "request_id":
		return protoreflect.ValueOfString(fmt.Sprint("r", p.rng.IntN(1000)))
	case "job_name", "cluster_id":
		return protoreflect.ValueOfString(one(p, "", "", "c"))
	case "key":
		return protoreflect.ValueOfString(one(p, "k", "k", "x"))
	}
	return protoreflect.ValueOfString(one(p, "c-k-0-1", "c-k-1-2", "x"))
}
