package main

import (
	"fmt"
	"io"
	"strings"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
)

// cacheChoices says which steps may be cached with each choice.
var cacheChoices = map[pecanv1.Cache]string{
	pecanv1.Cache_CACHE_CANDIDATES: "marked steps may be cached",
	pecanv1.Cache_CACHE_AUTO:       "marked steps may be cached, and those that the service finds",
	pecanv1.Cache_CACHE_PAPER:      "marked steps, the step after the source and the end of the pipeline may be cached",
	pecanv1.Cache_CACHE_OFF:        "no step may be cached",
}

// showCache prints the steps of a job that may be cached. Older dispatchers do not say anything about them.
func showCache(out io.Writer, e *pecanv1.ExplainResponse, width int) {
	if e.GetCache() == pecanv1.Cache_CACHE_UNSPECIFIED {
		return
	}
	choice := pecanv1.Word(e.GetCache(), "CACHE_")
	facts := [][]string{{"cache", choice + ": " + orElse(cacheChoices[e.GetCache()], "see a newer pecanctl")}}
	if len(e.GetCacheCandidates()) == 0 && e.GetCache() != pecanv1.Cache_CACHE_OFF {
		facts[0][1] += "; there is none"
	}
	status := e.GetCacheStatus()
	if status != nil {
		facts = append(facts, []string{"stored", fmt.Sprintf("%s, %d of %d segments, %s", status.GetState(), status.GetSegments(), status.GetStreams(), size(status.GetBytes()))})
	}
	if text := decisionText(e); text != "" {
		facts = append(facts, []string{"decision", text})
	}
	if problem := e.GetCacheProblem(); !strings.Contains(status.GetState(), problem) {
		facts = append(facts, []string{"problem", problem})
	}
	fmt.Fprintln(out)
	grid(out, facts, width)
	if len(e.GetCacheCandidates()) > 0 {
		fmt.Fprintln(out)
		grid(out, cacheRows(e, width), width)
	}
}

// decisionText describes the newest decision on the job's cache, or what the first one waits for; empty if there is nothing to
// decide.
func decisionText(e *pecanv1.ExplainResponse) string {
	d := e.GetCacheDecision()
	switch {
	case d == nil && e.GetCacheWaitsFor() != "":
		return "waits: " + e.GetCacheWaitsFor()
	case d == nil:
		return ""
	case d.GetNode() == "":
		return fmt.Sprintf("from epoch %d on, nothing is cached: %s", d.GetEpoch(), d.GetWhy())
	}
	return fmt.Sprintf("from epoch %d on, the elements of %s are cached: %s", d.GetEpoch(), d.GetNode(), d.GetWhy())
}

func cacheRows(e *pecanv1.ExplainResponse, width int) [][]string {
	labels := map[string]string{}
	for _, s := range e.GetSteps() {
		labels[s.GetNode()] = labelOf(s)
	}
	rows := [][]string{{"CANDIDATE", "STEP", "ELEMENTS", "WHY"}}
	for _, c := range e.GetCacheCandidates() {
		name, step := orElse(c.GetName(), "-"), c.GetNode()
		switch c.GetOrigin() {
		case pecanv1.CacheCandidate_FORCED:
			name = "pecan.cache()"
		case pecanv1.CacheCandidate_FOUND:
			step = orElse(labels[step], step)
		}
		elements, why := "computed", orElse(orElse(c.GetWhy(), predictedWhy(e, c)), "no decision to store it")
		switch {
		case c.GetRefusal() != pecanv1.CacheRefusal_CACHE_REFUSAL_UNSPECIFIED:
			elements, why = "not cacheable", pecanv1.Word(c.GetRefusal(), "CACHE_REFUSAL_")+": "+c.GetWhy()
		case isStored(e, c):
			elements, why = "stored", orElse(orElse(c.GetWhy(), predictedWhy(e, c)), "-")
		}
		if c.GetFreezes() {
			elements += ", frozen"
		}
		rows = append(rows, []string{name, clip(step, max(shortestName, min(longestName, width-80))), elements, why})
	}
	return rows
}

// predictedWhy says what the newest decision expects of a candidate; empty if it says nothing.
func predictedWhy(e *pecanv1.ExplainResponse, c *pecanv1.CacheCandidate) string {
	for _, p := range e.GetCacheDecision().GetCandidates() {
		if p.GetNode() == c.GetNode() {
			return p.GetWhy()
		}
	}
	return ""
}

// isStored reports whether workers store the elements of a candidate, or are about to.
func isStored(e *pecanv1.ExplainResponse, c *pecanv1.CacheCandidate) bool {
	chosen := c.GetOrigin() == pecanv1.CacheCandidate_FORCED || c.GetNode() == e.GetCacheDecision().GetNode()
	return chosen && e.GetCacheStatus() != nil && !strings.HasPrefix(e.GetCacheStatus().GetState(), "off")
}
