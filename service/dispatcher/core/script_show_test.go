package core_test

import (
	"fmt"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/proto/reason"
	"github.com/pecan-ml/pecan/service/dispatcher/core"
	"github.com/pecan-ml/pecan/service/dispatcher/core/fleet"
	"github.com/pecan-ml/pecan/service/dispatcher/core/measure"
	"github.com/pecan-ml/pecan/service/dispatcher/core/placement"
	"github.com/pecan-ml/pecan/service/dispatcher/core/rollout"
)

// show prints a result, records first, in the order of their release.
func (s *script) show(result core.Result) []string {
	var lines []string
	// Scripts report one stream in a call.
	reply, _ := result.Reply.(interface {
		GetRefused() []*pecanv1.RefusedStream
	})
	if result.Err == nil && reply != nil && len(reply.GetRefused()) > 0 {
		result.Err = reason.FromDetail(reply.GetRefused()[0].GetError())
	}
	for _, record := range result.Records {
		for _, single := range s.singles(record) {
			lines = append(lines, showRecord(single))
		}
	}
	for _, effect := range result.Effects {
		if command, ok := effect.(core.Command); ok {
			for _, single := range s.commands(command) {
				lines = append(lines, fmt.Sprintf("session %d: %s", command.Session, showCommand(single)))
			}
		} else if update, ok := effect.(core.Update); ok {
			lines = append(lines, fmt.Sprintf("watch %d: %s", update.Watch, s.showUpdate(update)))
		} else if line := showEffect(effect); line != "" {
			lines = append(lines, line+s.showPlan(effect))
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

// showPlan says whether a request for workers names another plan than the one before for the same job.
func (s *script) showPlan(effect core.Effect) string {
	request, isRequest := effect.(placement.Request)
	if !isRequest {
		return ""
	}
	before, known := s.plans[request.JobID]
	if s.plans[request.JobID] = request.Plan; known && before != request.Plan {
		return ", another plan"
	}
	return ""
}

func showID(id *pecanv1.StreamId) string {
	return fmt.Sprintf("%s/%d/%d", id.GetJobId(), id.GetEpoch(), id.GetStream())
}

func showEffect(effect core.Effect) string {
	switch e := effect.(type) {
	case core.EndSession:
		if e.Err == nil {
			return fmt.Sprintf("session %d: end", e.Session)
		}
		return fmt.Sprintf("session %d: end with %s: %s", e.Session, e.Err.Reason, e.Err.Message)
	case core.EndWatch:
		if e.Err == nil {
			return fmt.Sprintf("watch %d: end", e.Watch)
		}
		return fmt.Sprintf("watch %d: end with %s", e.Watch, e.Err.Reason)
	case rollout.PlanRequest:
		return fmt.Sprintf("plan order %d of %s by %v within %v from %s", e.Number, e.Fingerprint, e.Options.Order, e.Options.OrderTolerance, showNodes(e.Nodes))
	case placement.Request:
		exist := ""
		if e.Registered != e.Remote || e.RegisteredLocal != e.Local {
			exist = fmt.Sprintf(" (%d and %d exist)", e.Registered, e.RegisteredLocal)
		}
		if e.Running > 0 {
			exist += fmt.Sprintf(", of which trainers run %d", e.Running)
		}
		if e.Left > 0 {
			exist += fmt.Sprintf(" for %.0f elements", e.Left)
		}
		if e.Predicted.Stage != "" {
			exist += fmt.Sprintf(", %s with %d and %d", e.Predicted.Stage, e.Predicted.Remote, e.Predicted.Local)
		}
		return fmt.Sprintf("place %d: %s among %d remote and %d local workers%s, known %v, %s", e.Number, e.JobID, e.Remote, e.Local, exist, e.Known != nil, showWindow(e.Window))
	case fleet.Request:
		return fmt.Sprintf("ask the provider for %d workers without %v", e.Desired, e.Leaving)
	case core.WorkerLeft:
		return fmt.Sprintf("worker %s left after %v, asked %v, its streams that can begin at any index: %v after %v", e.Worker, e.All, e.Asked, e.HadAtIndex, e.AtIndex)
	case core.CachingRequest:
		return showCaching(e)
	case core.RemoveGraph:
		return "forget graph " + e.Fingerprint
	}
	return ""
}

func showCommand(command *pecanv1.WorkerCommand) string {
	switch k := command.Kind.(type) {
	case *pecanv1.WorkerCommand_StopStreams:
		return showOver(k.StopStreams)
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
		}{{"ahead", k.Start.Prefetch}, {"remainder_only", k.Start.RemainderOnly}, {fmt.Sprintf("delivered_below=%d", k.Start.DeliveredBelow), k.Start.DeliveredBelow > 0}, {"open_exclusive", k.Start.OpenExclusive},
			{"inline", k.Start.MayRunInline && k.Start.Options.Order > pecanv1.Order_ORDER_OFF},
		} {
			if flag.set {
				line += " " + flag.name
			}
		}
		switch order := k.Start.Cache; {
		case order == nil:
		case order.Step.GetParts() > 0:
			line += " parts of " + order.Key
			for _, segment := range order.Segments {
				line += fmt.Sprintf(" %d:%s", segment.Part, segment.Name)
			}
			if order.WrittenBelow < order.Step.Parts {
				line += fmt.Sprintf(" written_below=%d", order.WrittenBelow)
			}
		case len(order.Segments) > 0:
			line += " read " + order.Segments[0].Name
		default:
			line += " write " + order.Key
		}
		if guard := k.Start.CrashGuard; guard.GetSerial() {
			line += fmt.Sprintf(" serial until=%d", guard.Below)
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
	if k := command.GetCachePart(); k != nil {
		return fmt.Sprintf("part %d of %v lease=%d: %s", k.Part, k.Id.Key(), k.Lease, partAnswer(k))
	}
	if k := command.GetLeave(); k != nil {
		return "leave: " + k.Why
	}
	if k := command.GetCacheOrphans(); k != nil {
		return fmt.Sprintf("orphans %v", k.Names)
	}
	if k := command.GetTryOrder(); k != nil {
		return fmt.Sprintf("try %s of %s: %v up to %s and %s for %.4g s within %v", k.Id, k.Fingerprint, k.Order, k.RegisteredLast, k.OrderedLast, k.CpuS, k.Options.OrderTolerance)
	}
	return command.String()
}

func (s *script) showUpdate(update core.Update) string {
	u := update.Message
	if u.Full {
		s.watched[update.Watch] = nil
	}
	workers := append(s.watched[update.Watch], u.Workers...)
	s.watched[update.Watch] = workers
	line := fmt.Sprintf("total=%d", u.TotalStreams)
	if u.Full {
		line = "full " + line
	}
	if u.Delivered > 0 {
		line += fmt.Sprintf(" delivered=%d", u.Delivered)
	}
	if u.StreamsFinal {
		line += " final"
	}
	if u.NoMoreStreams {
		line += " no-more"
	}
	for _, number := range u.Revoked {
		line += fmt.Sprintf(" [%d revoked]", number)
	}
	for _, s := range u.Streams {
		worker := ""
		if s.WorkerNumber > 0 {
			worker = workers[s.WorkerNumber-1].WorkerId
		}
		line += fmt.Sprintf(" [%d lease=%d @%s", s.Stream, s.Lease, worker)
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
	if u.CacheDecision != "" && u.CacheDecision != s.decisions[update.Watch] {
		line += " decided: " + u.CacheDecision
		s.decisions[update.Watch] = u.CacheDecision
	}
	if u.CacheProblem != "" {
		line += " cache: " + u.CacheProblem
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
	case *pecanv1.MergeLearnedResponse:
		return fmt.Sprintf("ok, something new of %d graphs, %d orders in use", r.Graphs, r.OrdersInUse)
	case *pecanv1.ClientHeartbeatResponse:
		if r.OrderAdvice != "" {
			return "ok, advice: " + r.OrderAdvice
		}
		if r.LocalWorkers != nil {
			return fmt.Sprintf("ok, %d local workers wanted (%s)", r.LocalWorkers.Number, r.LocalWorkers.Why)
		}
	case nil:
		return ""
	}
	return "ok"
}

func (s *script) status() []string {
	status := s.core.Status(s.now)
	lines := []string{fmt.Sprintf("clients=%d datasets=%d", status.Clients, len(status.Datasets))}
	if p := status.Provider; p != nil {
		lines = append(lines, fmt.Sprintf("provider %s wanted=%d desired=%d requested=%d pending=%d ready=%d leaving=%v stuck=%d why=%q error=%q", p.Name, p.Wanted, p.Desired, p.Requested, p.Pending, p.Ready, p.Leaving, p.Stuck, p.Why, p.Error))
	}
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
				line := fmt.Sprintf("  epoch %d is ordered in %v", e.Epoch, e.OrderedStreams)
				if e.OrderedBelow > 0 {
					line += fmt.Sprintf(" and from %d to below %d", e.OrderedFrom, e.OrderedBelow)
				}
				lines = append(lines, line)
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

// fleet shows what an operator sees of the workers of a job.
func (s *script) fleet(job string) []string {
	e, err := s.core.Explain(job)
	if err != nil {
		s.t.Fatal(err)
	}
	r := e.Response
	line := fmt.Sprintf("%d remote and %d local workers, %d trainers", r.Fleet.Remote, r.Fleet.Local, r.Fleet.Trainers)
	if p := r.Placement; p != nil {
		line += fmt.Sprintf("; %s: %d remote and %d local wanted, %s: %s", r.PlacementOptions.Objective, p.Remote, p.Local, p.State, p.Why)
	}
	return []string{line}
}

// hears shows the decision on workers in the answer to a heartbeat.
func (s *script) hears(a args) []string {
	result := s.decide(&pecanv1.ClientHeartbeatRequest{ClientId: a["client"], JobIds: a.list("jobs")})
	if result.Err != nil {
		s.t.Fatal(result.Err)
	}
	p := result.Reply.(*pecanv1.ClientHeartbeatResponse).Placement
	if p == nil {
		return []string{"no placement"}
	}
	return []string{fmt.Sprintf("%d remote and %d local, %s: %s, %d candidates", p.Remote, p.Local, p.State, p.Why, len(p.Candidates))}
}

func showWindow(w *measure.Window) string {
	if w == nil {
		return "no window"
	}
	line := fmt.Sprintf("window of %v with %d remote and %d local workers", w.Length, w.Remote, w.Local)
	if w.Disturbed {
		line += ", disturbed by other jobs"
	}
	for _, trainer := range w.Trainers {
		line += fmt.Sprintf(", a trainer takes one element in %.4g s", measure.Median(trainer.Subs, measure.SubWindow.ElementTime))
	}
	for _, worker := range w.Fleet {
		line += fmt.Sprintf(", a worker is busy for %.4g and produces %.4g/s", worker.Busy, worker.Elements)
	}
	return line
}
