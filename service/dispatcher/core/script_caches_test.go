package core_test

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/dispatcher/core"
	"github.com/pecan-ml/pecan/service/dispatcher/core/measure"
)

// candidates reads cache candidates: name, name*parts, or name:refusal. The name may be followed by steps between map and candidate,
// name+Jitter+Crop.
func candidates(list []string) (all []*pecanv1.CacheCandidate) {
	for _, text := range list {
		name, refusal, _ := strings.Cut(text, ":")
		name, parts, _ := strings.Cut(name, "*")
		name, between, _ := strings.Cut(name, "+")
		c := &pecanv1.CacheCandidate{
			Name: name, Node: "Take_" + name, Origin: pecanv1.CacheCandidate_MARKED, Refusal: enum[pecanv1.CacheRefusal](pecanv1.CacheRefusal_value, "CACHE_REFUSAL_", refusal),
		}
		if refusal == "" {
			c.Plan = &pecanv1.CachePlan{Node: c.Node, Key: name, Upstream: []string{"Source", "Map_" + name}, Parts: uint32(args{"parts": parts}.number("parts"))}
			if between != "" {
				c.Plan.Upstream = append(c.Plan.Upstream, strings.Split(between, "+")...)
			}
			c.Plan.Upstream = append(c.Plan.Upstream, c.Node)
			slices.Reverse(c.Plan.Upstream)
		}
		all = append(all, c)
	}
	return all
}

// decided reads a decision on a cache: job= asked= step= order= why= share= benefit= compute= put= get=. The last three are numbers
// of remote workers. With infinite, the score is infinite.
func decided(a args) core.CachingDecided {
	d := core.CachingDecided{Number: a.number("asked"), JobID: a["job"], WaitsFor: a["waits"]}
	if a.has("why") {
		d.Decision = &pecanv1.CacheDecision{Node: a["step"], Order: a.list("order"), Why: a["why"], Epochs: 3, Tried: a.has("tried")}
		workers := func(epoch string) *pecanv1.CacheEpoch { return &pecanv1.CacheEpoch{Remote: uint32(a.number(epoch))} }
		d.Decision.Compute = workers("compute")
		if a.has("infinite") {
			d.Decision.Total = math.Inf(1)
		}
		if a.has("share") {
			p := &pecanv1.CachePrediction{Node: a["step"], Eligible: true, Share: a.float("share"), Put: workers("put"), Get: workers("get")}
			if a.has("benefit") {
				p.BenefitS = proto.Float64(a.float("benefit"))
			}
			d.Decision.Candidates = []*pecanv1.CachePrediction{p}
		}
	}
	return d
}

// asks shows what a decision before the next epoch would be made from.
func (s *script) asks(a args) []string {
	asked := s.core.CacheToDecide(&pecanv1.OpenEpochRequest{JobId: a["job"], ClientId: a["client"]})
	if asked == nil {
		return []string{"nothing to decide"}
	}
	return []string{showCaching(*asked)}
}

func showCaching(r core.CachingRequest) string {
	f := r.Facts
	line := fmt.Sprintf("decide cache %d of %s in force %q: %s, %d elements, %d epochs begun, %d other jobs, workers %d+%d, room %d", r.Number, r.JobID, f.Current,
		showNodes(f.Nodes), f.Elements, f.Begun, len(f.Past), f.Remote, f.Local, f.Quota)
	for _, node := range slices.Sorted(maps.Keys(f.Tries)) {
		line += fmt.Sprintf("; %d tries of %q", f.Tries[node], node)
	}
	if f.Tried {
		line += "; a try is in force"
	}
	for _, e := range f.Epochs {
		line += fmt.Sprintf("; epoch of %q took %.3g s with %d+%d", e.Node, e.Seconds, e.Remote, e.Local)
	}
	show := func(steps []measure.CachedStep) {
		for _, step := range steps {
			line += fmt.Sprintf("; %s stored %.3g", step.Candidate.Node, step.Stored)
			if step.Problem != "" {
				line += " but " + step.Problem
			}
			for _, past := range step.Past {
				line += fmt.Sprintf(" (%d epochs of %s)", past.Epochs, past.JobId)
			}
		}
	}
	for _, use := range f.Source {
		line += fmt.Sprintf(", %.0f elements in %.4g of %.4g s by %d or more workers", use.Elements, use.Seconds, use.All, use.Workers)
	}
	for _, use := range f.Reads {
		line += fmt.Sprintf(", %d workers read %.0f elements of %.0f bytes in %.4g s", use.Workers, use.Elements, use.Bytes, use.Seconds)
	}
	if show(f.Steps); f.Ordered != nil {
		line += fmt.Sprintf("; or in %v, in force %v", f.Ordered.Decided.Order, f.Ordered.InForce)
		show(f.Ordered.Steps)
	}
	return line
}

// caching shows what a user sees of the steps that a job may cache.
func (s *script) caching(job string) []string {
	e, err := s.core.Explain(job)
	if err != nil {
		s.t.Fatal(err)
	}
	r := e.Response
	lines := []string{fmt.Sprintf("%s, state=%q problem=%q", r.Cache, r.CacheStatus.GetState(), r.CacheProblem)}
	if d := r.CacheDecision; d != nil {
		lines = append(lines, fmt.Sprintf("  from epoch %d: %q (%s)%s", d.Epoch, d.Node, d.Why, inOrder(d)))
	}
	if r.CacheWaitsFor != "" {
		lines = append(lines, "  waits: "+r.CacheWaitsFor)
	}
	for _, c := range r.CacheCandidates {
		lines = append(lines, fmt.Sprintf("  %s %s %s", c.Name, c.Node, c.Refusal))
	}
	return lines
}
