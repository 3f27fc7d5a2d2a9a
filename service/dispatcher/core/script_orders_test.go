package core_test

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/proto/reason"
	"github.com/pecan-ml/pecan/service/dispatcher/core"
	"github.com/pecan-ml/pecan/service/dispatcher/core/rollout"
)

func (s *script) orderInput(command string, a args) any {
	from := func(m *pecanv1.WorkerMessage) any {
		return core.FromWorker{Session: core.SessionID(a.number("session")), Message: m}
	}
	switch command {
	case "metrics":
		s.metricsSequence++
		return from(&pecanv1.WorkerMessage{Kind: &pecanv1.WorkerMessage_Metrics{Metrics: &pecanv1.JobMetrics{
			JobId: a["job"], Generation: 1, Sequence: s.metricsSequence, Nodes: nodes(a.list("nodes")), Ordered: nodes(a.list("ordered")), Inline: nodes(a.list("inline")),
			Failed: a.number("failed"), OrderedFailed: a.number("ordered-failed"),
		}}})
	case "rolled_back":
		return core.OrderRefused{JobID: a["job"], Why: a["why"]}
	case "planned":
		planned := rollout.Planned{
			Number: a.number("asked"), Order: a.list("order"), Why: a["why"], Retry: a["again"], PredictedBefore: a.float("before"), PredictedAfter: a.float("after"),
		}
		for _, name := range a.list("steps") {
			node, op, _ := strings.Cut(name, "/")
			planned.Steps = append(planned.Steps, &pecanv1.ExplainedStep{Node: node, Op: op, Inside: node[:max(0, strings.LastIndex(node, ":"))]})
		}
		if a.has("wider") {
			planned.WiderTolerance = enum[pecanv1.OrderTolerance](pecanv1.OrderTolerance_value, "ORDER_TOLERANCE_", a["wider"])
			planned.Wider = &rollout.Planned{Order: a.list("wider-order"), Steps: planned.Steps, PredictedBefore: planned.PredictedBefore, PredictedAfter: a.float("wider-after")}
		}
		return planned
	case "tried":
		report := &pecanv1.OrderTried{Id: a["id"]}
		if !a.has("empty") {
			report.Trial = &pecanv1.OrderTrial{
				Elements: uint32(a.number("elements")), OriginalS: a.float("original"), OrderedS: a.float("ordered"), CpuS: a.float("cpu"), Refused: a["refused"],
				Inconclusive: a.has("short"),
			}
			if a.has("differs") {
				report.Trial.Components = []*pecanv1.OrderDifference{{MaxDifference: a.float("differs"), Bound: -1, Range: 10}}
			}
		}
		return from(&pecanv1.WorkerMessage{Kind: &pecanv1.WorkerMessage_OrderTried{OrderTried: report}})
	}
	return nil
}

func (a args) float(name string) float64 {
	f, _ := strconv.ParseFloat(a[name], 64)
	return f
}

// nodes reads name:elements:seconds,... or name/op:elements:seconds,... A name with a colon names a step in the function of the step before the colon. That
// step has seconds@elements, with the elements that its function has returned.
func nodes(texts []string) (list []*pecanv1.NodeMetrics) {
	for _, text := range texts {
		parts := strings.Split(text, ":")
		at := len(parts) - 2
		name, op, _ := strings.Cut(strings.Join(parts[:at], ":"), "/")
		node := &pecanv1.NodeMetrics{Node: name, Op: cmp.Or(op, "Op")}
		node.Elements, _ = strconv.ParseUint(parts[at], 10, 64)
		seconds, inside, _ := strings.Cut(parts[at+1], "@")
		node.SelfCpuS, _ = strconv.ParseFloat(seconds, 64)
		node.InsideElements, _ = strconv.ParseUint(inside, 10, 64)
		if at == 1 {
			list = append(list, node)
			continue
		}
		caller := slices.IndexFunc(list, func(n *pecanv1.NodeMetrics) bool { return n.Node == strings.Join(parts[:at-1], ":") })
		list[caller].Inside = append(list[caller].Inside, node)
	}
	return list
}

func showStage(o *pecanv1.StoredOrder) string {
	if len(o.Order) == 0 {
		return "none"
	}
	return fmt.Sprintf("%v over %v, by stream %v", o.Stage, o.Covers, o.ByStream)
}

func showNodes(list []*pecanv1.NodeMetrics) string {
	var words []string
	for _, node := range list {
		words = append(words, fmt.Sprintf("%s:%d:%.4g", node.Node, node.Elements, node.SelfCpuS))
		if len(node.Inside) > 0 {
			words = append(words, fmt.Sprintf("(%d returned of %s)", node.InsideElements, showNodes(node.Inside)))
		}
	}
	return strings.Join(words, " ")
}

func (s *script) explain(job string) []string {
	e, err := s.core.Explain(job)
	if err != nil {
		return []string{fmt.Sprintf("error %s: %s", reason.From(err).Reason, reason.From(err).Message)}
	}
	r := e.Response
	lines := []string{fmt.Sprintf("%s by %v within %v: %s: %s", r.JobId, r.Order, r.Tolerance, r.State, r.Why), fmt.Sprintf("  %v from %s", e.Order, showNodes(e.Nodes))}
	if r.PredictedBeforeS > 0 {
		lines = append(lines, fmt.Sprintf("  predicted %.4g s instead of %.4g s", r.PredictedAfterS, r.PredictedBeforeS))
	}
	if r.Trial != nil {
		lines = append(lines, fmt.Sprintf("  tried on %d elements, refused: %q", r.Trial.Elements, r.Trial.Refused))
	}
	if r.OrderAdvice != "" {
		lines = append(lines, "  "+r.OrderAdvice)
	}
	if p := r.Production; p != nil {
		lines = append(lines, fmt.Sprintf("  in production %d of %.4g s, and %d of %.4g s in the order", p.RegisteredElements, p.RegisteredS, p.OrderedElements, p.OrderedS))
	}
	return lines
}
