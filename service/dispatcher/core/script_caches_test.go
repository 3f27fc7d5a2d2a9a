package core_test

import (
	"fmt"
	"strings"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/dispatcher/core"
)

// candidates reads cache candidates: name, name*parts, or name:refusal.
func candidates(list []string) (all []*pecanv1.CacheCandidate) {
	for _, text := range list {
		name, refusal, _ := strings.Cut(text, ":")
		name, parts, _ := strings.Cut(name, "*")
		c := &pecanv1.CacheCandidate{
			Name: name, Node: "Take_" + name, Origin: pecanv1.CacheCandidate_MARKED, Refusal: enum[pecanv1.CacheRefusal](pecanv1.CacheRefusal_value, "CACHE_REFUSAL_", refusal),
		}
		if refusal == "" {
			c.Plan = &pecanv1.CachePlan{Node: c.Node, Key: name, Upstream: []string{c.Node, "Map_" + name, "Source"}, Parts: uint32(args{"parts": parts}.number("parts"))}
		}
		all = append(all, c)
	}
	return all
}

// decided reads a decision on a cache: job= asked= step= why= share=.
func decided(a args) core.CachingDecided {
	d := core.CachingDecided{Number: a.number("asked"), JobID: a["job"], WaitsFor: a["waits"]}
	if a.has("why") {
		d.Decision = &pecanv1.CacheDecision{Node: a["step"], Why: a["why"], Epochs: 3}
		if a.has("share") {
			d.Decision.Candidates = []*pecanv1.CachePrediction{{Node: a["step"], Eligible: true, Share: a.float("share")}}
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
	for _, step := range f.Steps {
		line += fmt.Sprintf("; %s stored %.3g", step.Candidate.Node, step.Stored)
		if step.Problem != "" {
			line += " but " + step.Problem
		}
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
		lines = append(lines, fmt.Sprintf("  from epoch %d: %q (%s)", d.Epoch, d.Node, d.Why))
	}
	if r.CacheWaitsFor != "" {
		lines = append(lines, "  waits: "+r.CacheWaitsFor)
	}
	for _, c := range r.CacheCandidates {
		lines = append(lines, fmt.Sprintf("  %s %s %s", c.Name, c.Node, c.Refusal))
	}
	return lines
}
