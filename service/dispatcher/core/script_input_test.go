package core_test

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/dispatcher/core"
	"github.com/pecan-ml/pecan/service/dispatcher/core/fleet"
	"github.com/pecan-ml/pecan/service/dispatcher/core/placement"
)

func (s *script) clientInput(command string, a args) any {
	switch command {
	case "start":
		return core.Start{ClusterID: a["cluster"], UnixS: s.unix()}
	case "dataset":
		return core.AddDataset{
			WantedID: a["id"], DerivedIDs: []string{a["fingerprint"], a["fingerprint"] + "-x"}, Fingerprint: a["fingerprint"],
			Spec: &pecanv1.DatasetSpec{ElementSpec: []byte(a["spec"])}, GraphBytes: 100,
		}
	case "job":
		return s.createJob(a)
	case "open":
		request := &pecanv1.OpenEpochRequest{
			RequestId: a["request"], ClientId: a["client"], JobId: a["job"], Pass: a.number("pass"), Prefetch: a.has("ahead"), Position: position(a),
			HeartbeatNumber: a.number("heartbeat"),
		}
		if found := a.list("found"); len(found) > 0 {
			return core.OpenEpochAt{Request: request, Order: found}
		}
		return request
	case "adopt":
		return &pecanv1.AdoptEpochRequest{ClientId: a["client"], JobId: a["job"], Epoch: a.number("epoch")}
	case "watch":
		return core.Watch{ID: core.WatchID(a.number("id")), Request: &pecanv1.WatchEpochRequest{ClientId: a["client"], JobId: a["job"], Epoch: a.number("epoch")}}
	case "unwatch":
		return core.Unwatch{ID: core.WatchID(a.number("id"))}
	case "finish":
		id := streamID(a["stream"])
		return &pecanv1.FinishStreamsRequest{ClientId: a["client"], JobId: id.JobId, Epoch: id.Epoch, Streams: []*pecanv1.FinishedStream{
			{Stream: id.Stream, Lease: a.number("lease"), Count: a.number("count"), Assignment: a.assignment(), Abandoned: a.has("gave-up")},
		}}
	case "release":
		id := streamID(a["stream"])
		return &pecanv1.ReleaseStreamsRequest{ClientId: a["client"], JobId: id.JobId, Epoch: id.Epoch, Streams: []*pecanv1.ReleasedStream{
			{Stream: id.Stream, Lease: a.number("lease"), NextIndex: a.number("next"), Assignment: a.assignment()},
		}}
	case "report":
		return &pecanv1.ReportWorkerRequest{ClientId: a["client"], Id: streamID(a["stream"]), Lease: a.number("lease"), WorkerId: a["worker"], Message: a["message"], Number: a.number("number")}
	case "mark":
		return &pecanv1.MarkElementsRequest{
			WorkerId: a["worker"], Id: streamID(a["stream"]), Lease: a.number("lease"), First: a.number("first"), Below: a.number("below"),
			Exclusive: a.has("exclusive"), Files: a.list("files"), Opening: a.has("opening"), ReadAhead: a.has("ahead"),
			Number: a.number("number"),
		}
	case "crashes":
		crash := &pecanv1.ReportCrashRequest{WorkerId: a["worker"], Cause: "SIGABRT"}
		for _, text := range a.list("opening") {
			stream, lease, _ := strings.Cut(text, ":")
			number, _ := strconv.ParseUint(lease, 10, 64)
			crash.Opening = append(crash.Opening, &pecanv1.OpeningStream{Id: streamID(stream), Lease: number})
		}
		crash.Running = loads(a.list("running"))
		return crash
	case "close":
		return &pecanv1.CloseEpochRequest{ClientId: a["client"], JobId: a["job"], Epoch: a.number("epoch"), RequestId: a["request"], Seconds: a.float("seconds"), Elements: a.number("elements")}
	case "heartbeat":
		return clientHeartbeat(a)
	case "placed":
		placed := placement.Placed{Number: a.number("asked"), JobID: a["job"], Placement: &pecanv1.Placement{
			Remote: uint32(a.number("remote")), Local: uint32(a.number("local")), State: a["state"], Converged: a["state"] == "monitor", Why: a["why"],
		}}
		if a.has("known") {
			placed.Known = &pecanv1.PlacementKnown{Remote: placed.Placement.Remote, Local: placed.Placement.Local}
		}
		return placed
	case "decided":
		return decided(a)
	case "answer":
		return answer(a)
	case "goodbye":
		return &pecanv1.ClientGoodbyeRequest{ClientId: a["client"]}
	}
	return nil
}

// answer reads what a provider of workers has, and what it was asked for: asked=number leave=address,...
func answer(a args) fleet.Answer {
	n := func(name string) int { return int(a.number(name)) }
	result := fleet.Answer{Error: a["error"], State: fleet.State{
		Desired: n("desired"), Requested: n("requested"), Pending: n("pending"), Ready: n("ready"), Stuck: n("stuck"), Leaving: a.list("leaving"),
		Removable: a.list("removable"), Ordered: a.has("ordered"), Why: a["why"],
	}}
	if a.has("asked") {
		result.Asked = &fleet.Request{Desired: n("asked"), Leaving: a.list("leave")}
	}
	return result
}

// position reads at=epoch next=i,j,... ended=stream,...
func position(a args) *pecanv1.Position {
	if !a.has("at") {
		return nil
	}
	p := &pecanv1.Position{Epoch: a.number("at")}
	for _, text := range a.list("next") {
		n, _ := strconv.ParseUint(text, 10, 64)
		p.Next = append(p.Next, n)
	}
	for _, text := range a.list("ended") {
		n, _ := strconv.ParseUint(text, 10, 32)
		p.Ended = append(p.Ended, uint32(n))
	}
	switch order := a.list("order"); {
	case a.has("registered"):
		p.Order = &pecanv1.EpochOrder{}
	case a.has("many"):
		p.Order = &pecanv1.EpochOrder{Hash: pecanv1.OrderHash(&pecanv1.Plan{Hash: a["hash"]}, order)}
	case len(order) > 0:
		p.Order = pecanv1.NewEpochOrder(&pecanv1.Plan{Hash: a["hash"]}, order)
	}
	return p
}

func clientHeartbeat(a args) *pecanv1.ClientHeartbeatRequest {
	knows, _ := time.ParseDuration(a["timeout"])
	req := &pecanv1.ClientHeartbeatRequest{ClientId: a["client"], JobIds: a.list("jobs"), ClientTimeoutS: knows.Seconds(), Number: a.number("number"), Opening: a.has("opening"), HostId: a["host"], TrainerId: a["trainer"]}
	if a.has("most") {
		req.LocalWorkers = &pecanv1.LocalWorkers{Most: uint32(a.number("most")), Running: uint32(a.number("running"))}
	}
	// subs=first:last are sub-windows of 0.5 s, or of long= seconds, the last of which has just ended.
	if first, last, found := strings.Cut(a["subs"], ":"); found {
		from, _ := strconv.ParseUint(first, 10, 64)
		to, _ := strconv.ParseUint(last, 10, 64)
		for n := from; n <= to; n++ {
			length := 0.5
			if a.has("long") {
				length = a.float("long")
			}
			req.SubWindows = append(req.SubWindows, &pecanv1.SubWindow{Number: n, AgeS: length * float64(to-n), Seconds: length, Elements: 10})
		}
	}
	for _, text := range a.list("passes") {
		parts := strings.Split(text, ":")
		id := streamID(parts[0] + "/0")
		pass := &pecanv1.ClientHeartbeatRequest_Pass{JobId: id.JobId, Epoch: id.Epoch, Starved: slices.Contains(parts, "starved")}
		if len(parts) > 1 {
			pass.Elements, _ = strconv.ParseUint(parts[1], 10, 64)
		}
		req.Passes = append(req.Passes, pass)
	}
	return req
}

func (s *script) createJob(a args) any {
	request := &pecanv1.CreateJobRequest{
		RequestId: a["request"], ClientId: a["client"], DatasetId: a["dataset"], JobName: a["name"],
		Options: &pecanv1.JobOptions{
			Mode:     enum[pecanv1.Mode](pecanv1.Mode_value, "MODE_", a["mode"]),
			Sharding: enum[pecanv1.Sharding](pecanv1.Sharding_value, "SHARDING_", a["sharding"]),
			SeedSet:  a.has("seed"), Seed: a.number("seed"), AllowNondeterministic: a.has("allow"),
			Order:          enum[pecanv1.Order](pecanv1.Order_value, "ORDER_", a["order"]),
			OrderTolerance: enum[pecanv1.OrderTolerance](pecanv1.OrderTolerance_value, "ORDER_TOLERANCE_", a["tolerance"]),
		},
	}
	request.Options.Weight, request.Options.Tenant = a.float("weight"), a["tenant"]
	request.Options.Cache = enum[pecanv1.Cache](pecanv1.Cache_value, "CACHE_", a["cached"])
	if a.has("local") {
		request.Options.TargetWorkers = pecanv1.TargetWorkers_TARGET_WORKERS_LOCAL
	}
	if a.has("objective") || a.has("trainer") {
		request.Options.Placement = &pecanv1.PlacementOptions{Objective: a["objective"], TrainerType: a["trainer"]}
	}
	if request.Options.Mode == 0 {
		request.Options.Mode = pecanv1.Mode_MODE_EXACTLY_ONCE
	}
	s.jobs++
	input := core.CreateJob{Request: request, JobID: fmt.Sprintf("j%d", s.jobs), Seed: 99}
	if result := s.decide(input); result.Err == nil {
		if _, needed := result.Reply.(core.PlanNeeded); !needed {
			s.jobs--
			return input
		}
	} else {
		s.jobs--
		return input
	}
	input.Plan = &pecanv1.Plan{NumStreams: int32(a.number("streams")), AllOpen: a.has("all_open"), Shuffled: a.has("shuffled"), WritesFiles: a.has("files"), Fingerprint: a["dataset"], Hash: a["hash"], OrderHash: a["order_hash"], Repeat: int64(a.number("repeat"))}
	if a.has("runs") {
		input.Plan.Mode = enum[pecanv1.Mode](pecanv1.Mode_value, "MODE_", a["runs"])
	}
	if a.has("cache") {
		input.Plan.Cache = &pecanv1.CachePlan{Node: "Take", Key: a["cache"], Seeded: a.has("seeded"), Parts: uint32(a.number("parts")), Upstream: []string{"Take", "Map"}}
	}
	input.Plan.CacheCandidates = candidates(a.list("candidates"))
	if a.has("begins") {
		input.Plan.Resume = &pecanv1.Resume{Strategy: pecanv1.Resume_SEEK}
	}
	if a.has("free") {
		input.Plan.Determinism = pecanv1.DeterminismClass_DETERMINISM_CLASS_C
	}
	if a.has("cardinality") {
		input.Plan.Cardinality = int64(a.number("cardinality"))
	} else {
		input.Plan.Cardinality = -2
	}
	if a.has("group") {
		input.Plan.Group = int32(a.number("group"))
	}
	if a.has("closing") {
		input.Plan.BatchStrategy = pecanv1.BatchStrategy_BATCH_STRATEGY_CLOSING
	}
	return input
}

func (s *script) workerInput(command string, a args) any {
	session := core.SessionID(a.number("session"))
	from := func(m *pecanv1.WorkerMessage) any { return core.FromWorker{Session: session, Message: m} }
	switch command {
	case "hello":
		hello := &pecanv1.WorkerHello{
			Address: &pecanv1.WorkerAddress{WorkerId: a["worker"], Tcp: a["tcp"], HostId: a["host"]},
			Kind:    a["kind"], TrainerId: a["trainer"],
			MaxStreams: int32(max(1, a.number("slots"))), ClusterId: a["cluster"], Caches: a.has("caches"),
			Number: a.number("number"),
		}
		if hello.Address.Tcp == "" {
			hello.Address.Tcp = a["worker"] + ":1"
		}
		for _, text := range a.list("held") {
			hello.Held = append(hello.Held, held(text))
		}
		return core.Hello{Session: session, Message: hello}
	case "worker-heartbeat":
		heartbeat := &pecanv1.WorkerHeartbeat{Leaving: a.has("leaving"), Streams: pecanv1.PackLoads(loads(a.list("streams"))), UptimeS: a.float("uptime"), ComputedS: a.float("computed")}
		for _, text := range a.list("reads") {
			parts := strings.Split(text, ":")
			read := args{"elements": parts[0], "bytes": parts[1], "seconds": parts[2]}
			transfer := &pecanv1.StoreTransfer{Elements: read.number("elements"), Bytes: read.number("bytes"), Seconds: read.float("seconds"), WorkS: read.float("seconds")}
			heartbeat.Store = &pecanv1.StoreRates{Reads: []*pecanv1.StoreTransfer{transfer}, FreeBytes: -1}
		}
		if a.has("dropped") {
			heartbeat.Cache = &pecanv1.CacheMetrics{WritesDropped: a.number("dropped")}
		}
		return from(&pecanv1.WorkerMessage{Kind: &pecanv1.WorkerMessage_Heartbeat{Heartbeat: heartbeat}})
	case "started":
		return from(&pecanv1.WorkerMessage{Kind: &pecanv1.WorkerMessage_Started{Started: &pecanv1.StreamStarted{Id: streamID(a["stream"]), Lease: a.number("lease")}}})
	case "ended":
		return from(&pecanv1.WorkerMessage{Kind: &pecanv1.WorkerMessage_Ended{Ended: &pecanv1.StreamEnded{
			Id: streamID(a["stream"]), Lease: a.number("lease"), Count: a.number("count"), RemainderRows: a.number("rows"),
		}}})
	case "failed":
		return from(&pecanv1.WorkerMessage{Kind: &pecanv1.WorkerMessage_Failed{Failed: &pecanv1.StreamFailed{
			Id: streamID(a["stream"]), Lease: a.number("lease"), BelowWindow: a.has("below_window"),
			Error: &pecanv1.ErrorDetail{Code: int32(a.number("code")), Reason: "TEST", Message: a["message"]},
		}}})
	case "stopped":
		return from(&pecanv1.WorkerMessage{Kind: &pecanv1.WorkerMessage_Stopped{Stopped: &pecanv1.StreamStopped{Id: streamID(a["stream"])}}})
	case "leave":
		return from(&pecanv1.WorkerMessage{Kind: &pecanv1.WorkerMessage_Goodbye{Goodbye: &pecanv1.WorkerGoodbye{}}})
	case "broken":
		return core.SessionEnded{Session: session}
	}
	return nil
}

// loads reads stream:lease:produced:acked[:rests][:unread][:unopened],...
func loads(texts []string) (loads []*pecanv1.WorkerHeartbeat_StreamLoad) {
	for _, text := range texts {
		h, parts := held(text), strings.Split(text, ":")
		load := &pecanv1.WorkerHeartbeat_StreamLoad{Id: h.Id, Lease: h.Lease, Opened: !slices.Contains(parts, "unopened")}
		load.Produced, _ = strconv.ParseUint(parts[2], 10, 64)
		load.Acked, _ = strconv.ParseUint(parts[3], 10, 64)
		load.Drained, load.Unread = slices.Contains(parts, "rests"), slices.Contains(parts, "unread")
		loads = append(loads, load)
	}
	return loads
}

// held reads job/epoch/stream:lease[:ended:count[:rows]].
func held(text string) *pecanv1.HeldStream {
	parts := strings.Split(text, ":")
	h := &pecanv1.HeldStream{Id: streamID(parts[0])}
	h.Lease, _ = strconv.ParseUint(parts[1], 10, 64)
	if len(parts) > 3 && parts[2] == "ended" {
		h.Ended = true
		h.Count, _ = strconv.ParseUint(parts[3], 10, 64)
	}
	if len(parts) > 4 {
		h.RemainderRows, _ = strconv.ParseUint(parts[4], 10, 64)
	}
	return h
}
