package core_test

import (
	"bufio"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/proto/reason"
	"github.com/pecan-ml/pecan/service/dispatcher/core"
	"github.com/pecan-ml/pecan/service/dispatcher/core/durable"
	"github.com/pecan-ml/pecan/service/dispatcher/core/rollout"
)

var rewrite = flag.Bool("rewrite", false, "write what the core does now into testdata; read the difference before you commit it")

// TestScripts runs the command files. A line that begins with "> " is an input, and the following lines are its
// results.
func TestScripts(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no command files: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) { runScript(t, file) })
	}
}

func runScript(t *testing.T, file string) {
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	s := newScript(t)
	var out strings.Builder
	lines := bufio.NewScanner(strings.NewReader(string(data)))
	for lines.Scan() {
		line := lines.Text()
		switch {
		case strings.HasPrefix(line, "> "):
			fmt.Fprintln(&out, line)
			for _, result := range s.run(strings.TrimPrefix(line, "> ")) {
				fmt.Fprintln(&out, result)
			}
			s.checkReplay()
		case line == "", strings.HasPrefix(line, "#"):
			fmt.Fprintln(&out, line)
		}
	}
	if got := out.String(); got != string(data) {
		if *rewrite {
			if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
				t.Fatal(err)
			}
			return
		}
		t.Errorf("%s: the core does something else now (run with -rewrite and look at the difference):\n%s", file, firstDifference(string(data), got))
	}
}

func firstDifference(want, got string) string {
	a, b := strings.Split(want, "\n"), strings.Split(got, "\n")
	for i := range min(len(a), len(b)) {
		if a[i] != b[i] {
			return fmt.Sprintf("line %d\n  want %s\n  got  %s", i+1, a[i], b[i])
		}
	}
	return fmt.Sprintf("%d lines instead of %d", len(b), len(a))
}

// script is a core with a clock and all its records.
type script struct {
	t       *testing.T
	cfg     core.Config
	core    *core.Core
	now     time.Duration
	records []*pecanv1.Record
	jobs    int
	// metricsSequence numbers the metrics of workers.
	metricsSequence uint64
}

func newScript(t *testing.T) *script {
	return &script{t: t, cfg: core.DefaultConfig(), core: core.New(core.DefaultConfig(), durable.NewState())}
}

// decide feeds the core and keeps the records as bytes, as the disk would.
func (s *script) decide(input any) core.Result {
	result := s.core.Decide(input, s.now)
	for _, record := range result.Records {
		s.records = append(s.records, proto.Clone(record).(*pecanv1.Record))
	}
	return result
}

func (s *script) replay() *durable.State {
	state := durable.NewState()
	for i, record := range s.records {
		if err := state.Apply(proto.Clone(record).(*pecanv1.Record)); err != nil {
			s.t.Fatalf("replay record %d: %v", i, err)
		}
	}
	return state
}

func (s *script) checkReplay() {
	s.t.Helper()
	if replayed := s.replay(); replayed.Hash() != s.core.State().Hash() {
		s.t.Fatalf("replayed state differs:\n%v\n%v", replayed.Snapshot(), s.core.State().Snapshot())
	}
	data, err := s.core.State().Marshal()
	if err != nil {
		s.t.Fatal(err)
	}
	restored, err := durable.Restore(data)
	if err != nil || restored.Hash() != s.core.State().Hash() {
		s.t.Fatalf("restored state differs (%v)", err)
	}
}

// args are the words of a command: name=value, or a bare name.
type args map[string]string

func (a args) number(name string) uint64 {
	n, _ := strconv.ParseUint(a[name], 10, 64)
	return n
}

func (a args) has(name string) bool { _, ok := a[name]; return ok }

// assignment is the first one unless the command names another.
func (a args) assignment() uint64 {
	if !a.has("assignment") {
		return 1
	}
	return a.number("assignment")
}

func (a args) list(name string) []string {
	if a[name] == "" {
		return nil
	}
	return strings.Split(a[name], ",")
}

// streamID reads job/epoch/stream.
func streamID(text string) *pecanv1.StreamId {
	id := &pecanv1.StreamId{}
	parts := strings.Split(text, "/")
	if len(parts) == 3 {
		epoch, _ := strconv.ParseUint(parts[1], 10, 64)
		stream, _ := strconv.ParseUint(parts[2], 10, 32)
		id.JobId, id.Epoch, id.Stream = parts[0], epoch, uint32(stream)
	}
	return id
}

func enum[E ~int32](values map[string]int32, prefix, text string) E {
	return E(values[prefix+strings.ToUpper(text)])
}

func (s *script) run(line string) []string {
	words := strings.Fields(line)
	a := args{}
	for _, word := range words[1:] {
		name, value, _ := strings.Cut(word, "=")
		a[name] = value
	}
	switch words[0] {
	case "config":
		return s.configure(a)
	case "restart":
		if a.has("client_timeout") {
			s.cfg.ClientTimeout, _ = time.ParseDuration(a["client_timeout"])
		}
		s.core = core.New(s.cfg, s.replay())
		return s.show(s.decide(core.Start{ClusterID: "other"}))
	case "wait":
		return s.wait(words[1])
	case "pause":
		d, _ := time.ParseDuration(words[1])
		s.now += d
		return s.show(s.decide(core.Tick{}))
	case "status":
		return s.status()
	case "explain":
		return s.explain(a["job"])
	}
	if input := s.orderInput(words[0], a); input != nil {
		return s.show(s.decide(input))
	}
	if input := s.clientInput(words[0], a); input != nil {
		return s.show(s.decide(input))
	}
	if input := s.workerInput(words[0], a); input != nil {
		return s.show(s.decide(input))
	}
	s.t.Fatalf("unknown command %q", line)
	return nil
}

func (s *script) configure(a args) []string {
	if a.has("workers") {
		s.cfg.WorkerAddresses = a.list("workers")
	}
	if a.has("dataset-timeout") {
		s.cfg.DatasetTimeout, _ = time.ParseDuration(a["dataset-timeout"])
	}
	s.core = core.New(s.cfg, durable.NewState())
	return nil
}

// wait lets time pass in ticks of 100 ms. Workers without a heartbeat are silent.
func (s *script) wait(text string) []string {
	d, err := time.ParseDuration(text)
	if err != nil {
		s.t.Fatal(err)
	}
	var lines []string
	for end := s.now + d; s.now < end; {
		s.now += 100 * time.Millisecond
		lines = append(lines, s.show(s.decide(core.Tick{}))...)
	}
	return lines
}

func (s *script) clientInput(command string, a args) any {
	switch command {
	case "start":
		return core.Start{ClusterID: a["cluster"]}
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
			HeartbeatNumber: a.number("beats"),
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
		return &pecanv1.FinishStreamRequest{ClientId: a["client"], Id: streamID(a["stream"]), Lease: a.number("lease"), Count: a.number("count"), Assignment: a.assignment(), Abandoned: a.has("gave-up")}
	case "release":
		return &pecanv1.ReleaseStreamRequest{ClientId: a["client"], Id: streamID(a["stream"]), Lease: a.number("lease"), NextIndex: a.number("next"), Assignment: a.assignment()}
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
		return &pecanv1.CloseEpochRequest{ClientId: a["client"], JobId: a["job"], Epoch: a.number("epoch"), RequestId: a["request"]}
	case "heartbeat":
		return clientBeat(a)
	case "goodbye":
		return &pecanv1.ClientGoodbyeRequest{ClientId: a["client"]}
	}
	return nil
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

func clientBeat(a args) *pecanv1.ClientHeartbeatRequest {
	knows, _ := time.ParseDuration(a["timeout"])
	req := &pecanv1.ClientHeartbeatRequest{ClientId: a["client"], JobIds: a.list("jobs"), ClientTimeoutS: knows.Seconds(), Number: a.number("number"), Opening: a.has("opening")}
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
	input.Plan = &pecanv1.Plan{NumStreams: int32(a.number("streams")), AllOpen: a.has("all_open"), WritesFiles: a.has("files"), Fingerprint: a["dataset"], Hash: a["hash"]}
	if a.has("runs") {
		input.Plan.Mode = enum[pecanv1.Mode](pecanv1.Mode_value, "MODE_", a["runs"])
	}
	if a.has("cache") {
		input.Plan.Cache = &pecanv1.CachePlan{Node: "Take", Key: a["cache"], Seeded: a.has("seeded")}
	}
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
			Address:    &pecanv1.WorkerAddress{WorkerId: a["worker"], Tcp: a["tcp"]},
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
	case "beat":
		beat := &pecanv1.WorkerHeartbeat{Leaving: a.has("leaving"), Streams: loads(a.list("streams"))}
		return from(&pecanv1.WorkerMessage{Kind: &pecanv1.WorkerMessage_Heartbeat{Heartbeat: beat}})
	case "started":
		return from(&pecanv1.WorkerMessage{Kind: &pecanv1.WorkerMessage_Started{Started: &pecanv1.StreamStarted{Id: streamID(a["stream"]), Lease: a.number("lease")}}})
	case "ended":
		return from(&pecanv1.WorkerMessage{Kind: &pecanv1.WorkerMessage_Ended{Ended: &pecanv1.StreamEnded{
			Id: streamID(a["stream"]), Lease: a.number("lease"), Count: a.number("count"), RemainderRows: a.number("rows"),
		}}})
	case "failed":
		return from(&pecanv1.WorkerMessage{Kind: &pecanv1.WorkerMessage_Failed{Failed: &pecanv1.StreamFailed{
			Id: streamID(a["stream"]), Lease: a.number("lease"), BelowWindow: a.has("gone"),
			Error: &pecanv1.ErrorDetail{Code: int32(a.number("code")), Reason: "TEST", Message: a["message"]},
		}}})
	case "stopped":
		return from(&pecanv1.WorkerMessage{Kind: &pecanv1.WorkerMessage_Stopped{Stopped: &pecanv1.StreamStopped{Id: streamID(a["stream"])}}})
	case "written":
		return from(&pecanv1.WorkerMessage{Kind: &pecanv1.WorkerMessage_CacheSegmentWritten{CacheSegmentWritten: &pecanv1.CacheSegmentWritten{Segment: segment(a)}}})
	case "invalid":
		return from(&pecanv1.WorkerMessage{Kind: &pecanv1.WorkerMessage_CacheSegmentInvalid{CacheSegmentInvalid: &pecanv1.CacheSegmentInvalid{Segment: segment(a), Why: a["why"]}}})
	case "files":
		return from(&pecanv1.WorkerMessage{Kind: &pecanv1.WorkerMessage_CacheFiles{CacheFiles: &pecanv1.CacheFiles{Names: a.list("names")}}})
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

// segment reads key= stream= of= name= bytes=.
func segment(a args) *pecanv1.CacheSegment {
	return &pecanv1.CacheSegment{
		Key: a["key"], Stream: uint32(a.number("stream")), Streams: uint32(a.number("of")), Name: a["name"], Bytes: int64(a.number("bytes")), Source: a["source"],
	}
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

// show prints a result, records first, in the order of their release.
func (s *script) show(result core.Result) []string {
	var lines []string
	for _, record := range result.Records {
		lines = append(lines, showRecord(record))
	}
	for _, effect := range result.Effects {
		if line := showEffect(effect); line != "" {
			lines = append(lines, line)
		}
	}
	switch {
	case result.Err != nil:
		lines = append(lines, fmt.Sprintf("error %s: %s", reason.From(result.Err).Reason, reason.From(result.Err).Message))
	default:
		if line := showReply(result.Reply); line != "" {
			lines = append(lines, line)
		}
	}
	return lines
}

func showID(id *pecanv1.StreamId) string {
	return fmt.Sprintf("%s/%d/%d", id.GetJobId(), id.GetEpoch(), id.GetStream())
}

func showRecord(record *pecanv1.Record) string {
	switch k := record.Kind.(type) {
	case *pecanv1.Record_Started:
		return "record started " + k.Started.ClusterId
	case *pecanv1.Record_DatasetAdded:
		return "record dataset added " + k.DatasetAdded.Dataset.DatasetId
	case *pecanv1.Record_DatasetRemoved:
		return "record dataset removed " + k.DatasetRemoved.DatasetId
	case *pecanv1.Record_ClientJoined:
		return "record client joined " + k.ClientJoined.ClientId
	case *pecanv1.Record_ClientLeft:
		return fmt.Sprintf("record client left %s (%s)", k.ClientLeft.ClientId, k.ClientLeft.Why)
	case *pecanv1.Record_JobCreated:
		weaker := ""
		if asked := k.JobCreated.Options.RequestedMode; asked != pecanv1.Mode_MODE_UNSPECIFIED {
			weaker = fmt.Sprintf(" %v instead of %v", k.JobCreated.Options.Mode, asked)
		}
		return fmt.Sprintf("record job created %s name=%s dataset=%s seed=%d%s", k.JobCreated.JobId, k.JobCreated.Name, k.JobCreated.DatasetId, k.JobCreated.Options.Seed, weaker)
	case *pecanv1.Record_JobJoined:
		return fmt.Sprintf("record job joined %s by %s", k.JobJoined.JobId, k.JobJoined.ClientId)
	case *pecanv1.Record_JobLeft:
		return fmt.Sprintf("record job left %s by %s", k.JobLeft.JobId, k.JobLeft.ClientId)
	case *pecanv1.Record_JobFailed:
		return fmt.Sprintf("record job failed %s: %s", k.JobFailed.JobId, k.JobFailed.Error.Message)
	case *pecanv1.Record_JobRemoved:
		return "record job removed " + k.JobRemoved.JobId
	case *pecanv1.Record_EpochOpened:
		line := fmt.Sprintf("record epoch opened %s/%d streams=%d", k.EpochOpened.JobId, k.EpochOpened.Epoch, k.EpochOpened.Streams)
		if at := k.EpochOpened.Position; at != nil {
			line += fmt.Sprintf(" at %v ended %v", at.Next, at.Ended)
		}
		if order := k.EpochOpened.Order; order != nil {
			line += fmt.Sprintf(" order %v", order)
		}
		if streams := k.EpochOpened.OrderStreams; streams != nil {
			line += fmt.Sprintf(" in %v", streams)
		}
		return line
	case *pecanv1.Record_EpochJoined:
		line := fmt.Sprintf("record epoch joined %s/%d by %s", k.EpochJoined.JobId, k.EpochJoined.Epoch, k.EpochJoined.ClientId)
		if k.EpochJoined.Prefetch {
			line += " ahead"
		}
		return line
	case *pecanv1.Record_EpochAdopted:
		return fmt.Sprintf("record epoch adopted %s/%d by %s", k.EpochAdopted.JobId, k.EpochAdopted.Epoch, k.EpochAdopted.ClientId)
	case *pecanv1.Record_EpochLeft:
		return fmt.Sprintf("record epoch left %s/%d by %s", k.EpochLeft.JobId, k.EpochLeft.Epoch, k.EpochLeft.ClientId)
	case *pecanv1.Record_EpochFailed:
		return fmt.Sprintf("record epoch failed %s/%d: %s", k.EpochFailed.JobId, k.EpochFailed.Epoch, k.EpochFailed.Error.Message)
	case *pecanv1.Record_EpochClosed:
		return fmt.Sprintf("record epoch closed %s/%d delivered=%v elements=%d", k.EpochClosed.JobId, k.EpochClosed.Epoch, k.EpochClosed.Delivered, k.EpochClosed.Elements)
	}
	return showStreamRecord(record)
}

func showStreamRecord(record *pecanv1.Record) string {
	switch k := record.Kind.(type) {
	case *pecanv1.Record_StreamAdded:
		return "record stream added " + showID(k.StreamAdded.Id)
	case *pecanv1.Record_LeaseGranted:
		restart := ""
		if k.LeaseGranted.Restart {
			restart = ", from its start"
		}
		return fmt.Sprintf("record lease %d granted %s to %s%s", k.LeaseGranted.Lease, showID(k.LeaseGranted.Id), k.LeaseGranted.Worker.WorkerId, restart)
	case *pecanv1.Record_LeaseLost:
		rest := ""
		if k.LeaseLost.Truncated {
			rest = ", and the rest of the stream"
		}
		if k.LeaseLost.OpeningCrashes > 0 {
			rest += fmt.Sprintf(", crash %d of its opening", k.LeaseLost.OpeningCrashes)
		}
		return fmt.Sprintf("record lease %d lost %s %v at %d%s (%s)", k.LeaseLost.Lease, showID(k.LeaseLost.Id), k.LeaseLost.Cause, k.LeaseLost.Progress, rest, k.LeaseLost.Why)
	case *pecanv1.Record_ConsumerAssigned:
		return fmt.Sprintf("record consumer %d of %s is %s from %d", k.ConsumerAssigned.Assignment, showID(k.ConsumerAssigned.Id), k.ConsumerAssigned.ClientId, k.ConsumerAssigned.StartIndex)
	case *pecanv1.Record_ConsumerReleased:
		return fmt.Sprintf("record consumer of %s, %s, gave it up at %d", showID(k.ConsumerReleased.Id), k.ConsumerReleased.ClientId, k.ConsumerReleased.NextIndex)
	case *pecanv1.Record_StreamProduced:
		return fmt.Sprintf("record produced %s count=%d rows=%d", showID(k.StreamProduced.Id), k.StreamProduced.Count, k.StreamProduced.RemainderRows)
	case *pecanv1.Record_StreamDelivered:
		rest := ""
		if k.StreamDelivered.Truncated {
			rest = fmt.Sprintf(", and the rest given up, of %d made", k.StreamDelivered.Produced)
		}
		return fmt.Sprintf("record delivered %s count=%d%s", showID(k.StreamDelivered.Id), k.StreamDelivered.Count, rest)
	case *pecanv1.Record_CacheSegmentAdded:
		return fmt.Sprintf("record segment of %s/%d is %s", k.CacheSegmentAdded.Segment.Key, k.CacheSegmentAdded.Segment.Stream, k.CacheSegmentAdded.Segment.Name)
	case *pecanv1.Record_CacheCommitted:
		return "record cache committed " + k.CacheCommitted.Key
	case *pecanv1.Record_CacheSegmentDropped:
		return fmt.Sprintf("record segment of %s/%d dropped, %s (%s)", k.CacheSegmentDropped.Key, k.CacheSegmentDropped.Stream, k.CacheSegmentDropped.Name, k.CacheSegmentDropped.Why)
	case *pecanv1.Record_CacheRemoved:
		return "record cache forgotten " + k.CacheRemoved.Key
	case *pecanv1.Record_OrderDecided:
		o := k.OrderDecided.Decided
		return fmt.Sprintf("record order of %s by %v within %v is %v, trial %v, %s (%s)", o.Fingerprint, o.Policy, o.Tolerance, o.Order, o.Trial != nil, showStage(o), o.Why)
	case *pecanv1.Record_OrderJudged:
		o := k.OrderJudged
		line := fmt.Sprintf("record order of %s by %v within %v comes to %v (%s)", o.Fingerprint, o.Policy, o.Tolerance, o.Stage, o.Why)
		if p := o.Production; p != nil {
			line += fmt.Sprintf(" registered %d of %.4g s, ordered %d of %.4g s, beside %v", p.RegisteredElements, p.RegisteredS, p.OrderedElements, p.OrderedS, p.SameEpochs)
		}
		return line
	case *pecanv1.Record_ProfileKept:
		return fmt.Sprintf("record profile of %s: %s", k.ProfileKept.Profile.Fingerprint, showNodes(k.ProfileKept.Profile.Nodes))
	}
	return fmt.Sprintf("record %v", record)
}

func showEffect(effect core.Effect) string {
	switch e := effect.(type) {
	case core.Command:
		return fmt.Sprintf("session %d: %s", e.Session, showCommand(e.Message))
	case core.EndSession:
		if e.Err == nil {
			return fmt.Sprintf("session %d: end", e.Session)
		}
		return fmt.Sprintf("session %d: end with %s: %s", e.Session, e.Err.Reason, e.Err.Message)
	case core.Update:
		return fmt.Sprintf("watch %d: %s", e.Watch, showUpdate(e.Message))
	case core.EndWatch:
		if e.Err == nil {
			return fmt.Sprintf("watch %d: end", e.Watch)
		}
		return fmt.Sprintf("watch %d: end with %s", e.Watch, e.Err.Reason)
	case rollout.PlanRequest:
		return fmt.Sprintf("plan order %d of %s by %v within %v from %s", e.Number, e.Fingerprint, e.Options.Order, e.Options.OrderTolerance, showNodes(e.Nodes))
	case core.RemoveGraph:
		return "forget graph " + e.Fingerprint
	}
	return ""
}

func showCommand(command *pecanv1.WorkerCommand) string {
	switch k := command.Kind.(type) {
	case *pecanv1.WorkerCommand_Welcome:
		return "welcome to " + k.Welcome.ClusterId
	case *pecanv1.WorkerCommand_Stop:
		line := fmt.Sprintf("stop %s lease=%d", showID(k.Stop.Id), k.Stop.Lease)
		if k.Stop.Confirm {
			line += " confirm"
		}
		return line
	case *pecanv1.WorkerCommand_Start:
		line := fmt.Sprintf("start %s lease=%d", showID(k.Start.Id), k.Start.Lease)
		for _, flag := range []struct {
			name string
			set  bool
		}{{"ahead", k.Start.Prefetch}, {"remainder_only", k.Start.RemainderOnly}, {fmt.Sprintf("delivered_below=%d", k.Start.DeliveredBelow), k.Start.DeliveredBelow > 0}, {"open_exclusive", k.Start.OpenExclusive}} {
			if flag.set {
				line += " " + flag.name
			}
		}
		if order := k.Start.Cache; order.GetSegment() != nil {
			line += " read " + order.Segment.Name
		} else if order != nil {
			line += " write " + order.Key
		}
		if suspicion := k.Start.CrashGuard; suspicion.GetSerial() {
			line += fmt.Sprintf(" serial until=%d", suspicion.Below)
		}
		if order := k.Start.Plan.GetOrder(); order != nil {
			line += fmt.Sprintf(" order %v", order)
		}
		for _, r := range k.Start.Remainders {
			line += fmt.Sprintf(" [%d@%s ready=%v rows=%d]", r.Stream, r.Worker.GetWorkerId(), r.Ready, r.Rows)
		}
		return line
	}
	if k := command.GetCacheSegmentAck(); k != nil {
		return fmt.Sprintf("segment %s kept=%v", k.Name, k.Accepted)
	}
	if k := command.GetCacheOrphans(); k != nil {
		return fmt.Sprintf("orphans %v", k.Names)
	}
	if k := command.GetTryOrder(); k != nil {
		return fmt.Sprintf("try %s of %s: %v up to %s and %s for %.4g s within %v", k.Id, k.Fingerprint, k.Order, k.RegisteredTop, k.OrderedTop, k.CpuS, k.Options.OrderTolerance)
	}
	return command.String()
}

func showUpdate(u *pecanv1.EpochUpdate) string {
	line := fmt.Sprintf("total=%d", u.TotalStreams)
	if u.StreamsFinal {
		line += " final"
	}
	if u.NoMoreStreams {
		line += " no-more"
	}
	for _, s := range u.Streams {
		line += fmt.Sprintf(" [%d lease=%d @%s", s.Stream, s.Lease, s.Worker.GetWorkerId())
		if s.Assignment > 1 {
			line += fmt.Sprintf(" assignment=%d", s.Assignment)
		}
		if s.StartIndex > 0 {
			line += fmt.Sprintf(" from=%d", s.StartIndex)
		}
		if s.Release {
			line += " release"
		}
		if s.Truncated {
			line += fmt.Sprintf(" cut-off made=%d", s.Produced)
		}
		if s.Ended {
			line += fmt.Sprintf(" count=%d", s.Count)
		}
		line += "]"
	}
	if u.Error != nil {
		line += " error=" + u.Error.Message
	}
	if u.Waiting != "" {
		line += " waiting: " + u.Waiting
	}
	return line
}

func showReply(reply any) string {
	switch r := reply.(type) {
	case *pecanv1.RegisterDatasetResponse:
		return fmt.Sprintf("ok dataset %s created=%v", r.DatasetId, r.Created)
	case *pecanv1.CreateJobResponse:
		return fmt.Sprintf("ok job %s created=%v workers=%d", r.JobId, r.Created, r.Workers)
	case *pecanv1.OpenEpochResponse:
		line := fmt.Sprintf("ok epoch %d already_delivered=%v", r.Epoch, r.AlreadyDelivered)
		if r.Order != nil {
			line += fmt.Sprintf(" order %.8s %v", r.Order.Hash, r.Order.Steps)
		}
		return line
	case nil:
		return ""
	}
	return "ok"
}

func (s *script) status() []string {
	status := s.core.Status(s.now)
	lines := []string{fmt.Sprintf("clients=%d datasets=%d", status.Clients, len(status.Datasets))}
	for _, w := range status.Workers {
		lines = append(lines, fmt.Sprintf("worker %s %s holds %d", w.Address.WorkerId, w.State, len(w.Streams)))
	}
	for _, j := range status.Jobs {
		lines = append(lines, fmt.Sprintf("job %s %q clients=%v", j.JobId, j.Name, j.Clients))
		if j.Cache != nil {
			lines = append(lines, fmt.Sprintf("  cache %s %s %d of %d, %d bytes", j.Cache.Key, j.Cache.State, j.Cache.Segments, j.Cache.Streams, j.Cache.Bytes))
		}
		if j.Order != nil {
			lines = append(lines, fmt.Sprintf("  order %s: %s", j.Order.State, j.Order.Why))
		}
		for _, e := range j.Epochs {
			if e.Ordered {
				lines = append(lines, fmt.Sprintf("  epoch %d is ordered in %v", e.Epoch, e.OrderedStreams))
			}
			lines = append(lines, fmt.Sprintf("  epoch %d %s done=%d running=%d waiting=%d elements=%d %s", e.Epoch, e.State, e.StreamsDone, e.StreamsRunning, e.StreamsWaiting, e.Elements, e.Waiting))
			if e.StreamsTruncated > 0 {
				lines = append(lines, fmt.Sprintf("    cut-off=%d lost=%d", e.StreamsTruncated, e.Lost))
			}
			for _, p := range e.Passes {
				if p.Starved || p.Elements > 0 {
					lines = append(lines, fmt.Sprintf("    pass of %s elements=%d starved=%v", p.ClientId, p.Elements, p.Starved))
				}
			}
		}
	}
	return lines
}
