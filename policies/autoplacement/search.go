package autoplacement

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"github.com/pecan-ml/pecan/policies/autoscale"
)

// Search is the default policy for both kinds of workers. It predicts the element time of every configuration,
// probes the best one, and keeps it if a sequential test confirms it. Then it monitors for changes.
type Search struct {
	// Margin is the gain that a probe must promise.
	Margin float64
	// Horizon is the number of windows that the job will still run, as far as known. A probe must pay for itself
	// in this time. It may change between windows; 0 is without an end.
	Horizon int
	// Known is the result of an earlier job with the same dataset and trainer type, or nil.
	Known *Known
	// Predicted has the workers from which the search begins if the plan changes now, or nil.
	Predicted *autoscale.Configuration

	state  string
	goal   autoscale.Goal
	plan   uint64
	target autoscale.Configuration
	// best is the best known configuration.
	best autoscale.Configuration
	obs  []observation
	// known has the curves of the last model. replanned is whether they are of an earlier plan.
	known     Known
	replanned bool
	// calm is the local curve of the last search that measured local workers on hosts without contention; zero without one.
	calm Curve
	// refuted has the configurations that lost a comparison in this search.
	refuted []autoscale.Configuration
	// left is the number of windows that this search may still take. searched is the horizon at the end of the last search.
	left, searched int
	monitor        *monitor
	// windows and spent are what all searches have cost, for the decision. before is what the earlier searches have cost, and
	// charged has the windows of this one.
	windows       int
	spent, before spending
	charged       []charge

	// missing counts windows without all wanted workers. Then ceiling bounds the wish for the next windows.
	missing int
	ceiling *autoscale.Configuration
	bounded int
	backoff int
}

// Known is the result of a search, to start a later one.
type Known struct {
	Workers       autoscale.Configuration
	Remote, Local Curve
	Load          Load
}

const (
	stateStart   = "start"
	stateSearch  = "search"
	stateMonitor = "monitor"
	// searchWindows bounds the windows of a search.
	searchWindows = 9
	// surprise is the logarithm of measured over predicted time from which a single window may be an outlier.
	surprise = 0.15
	// confirmWindows is the number of the last windows of a search that go to measured configurations.
	confirmWindows = 3
	// probeWindows is the price of a probe in windows: workers change in one, and change back in another. The windows that measure
	// it cost nothing on average, because it promises more than the best known configuration.
	probeWindows = 2
	// patience is the number of windows in which a missing worker is awaited. Then its kind is bounded for
	// firstBackoff windows, and for twice as many each time after that.
	patience     = 3
	firstBackoff = 20
	mostBackoff  = 320
	// keptWindows bounds the observations that are kept.
	keptWindows = 64
	// strideFrom is the number of remote workers from which a search does not compare each number.
	strideFrom = 100
	// tie is the relative value of one worker less between equal scores.
	tie = 1e-4
)

// NewSearch returns the policy with its default constants.
func NewSearch() *Search { return &Search{Margin: 0.02, Horizon: 200} }

// Result returns what later jobs may start from, or nil before the search has ended once.
func (s *Search) Result() *Known {
	if s.state != stateMonitor {
		return nil
	}
	known := s.known
	known.Workers = s.best
	return &known
}

// Next decides from one window.
func (s *Search) Next(g autoscale.Goal, w autoscale.Window) autoscale.Decision {
	reason := ""
	switch {
	case s.state == "":
		s.state, s.plan, s.goal, s.left, s.backoff = stateStart, w.Plan, g, searchWindows, firstBackoff
		s.target = autoscale.Configuration{Remote: 1, Local: 1}
		if s.Known != nil {
			s.target, s.known = s.Known.Workers, *s.Known
		}
		s.best = g.Limits.Clamp(s.target)
	case w.Plan != s.plan:
		reason = s.change(w.Plan, g)
	case g != s.goal && s.state == stateMonitor:
		reason = "the goal changed"
		s.begin()
	case s.searched > 0 && s.Horizon >= 2*s.searched && s.state == stateMonitor:
		reason = fmt.Sprintf("the job has %d windows left, after %d in the last search", s.Horizon, s.searched)
		s.begin()
	}
	s.goal = g
	s.target = g.Limits.Clamp(s.target)
	if why := w.Unusable(); why != "" {
		if reason != "" {
			reason += "; "
		}
		return s.decision(nil, reason+"the window is not usable: "+why)
	}
	o := observe(w)
	if s.obs = append(s.obs, o); len(s.obs) > keptWindows {
		s.obs = s.obs[1:]
	}
	if waits := s.await(o, &reason); waits {
		return s.decision(nil, cmp.Or(reason, "the window does not have the wanted workers"))
	}
	if s.state == stateMonitor {
		since, why := s.monitor.next(o)
		if why == "" {
			return s.decision(nil, "nothing changed")
		}
		reason, s.obs = why, slices.Clone(since)
		s.begin()
	}
	m := newModel(s.obs, g.Trainers, s.curves())
	if m.remote.Rate == 0 && m.local.Rate == 0 {
		// Trainers have taken what was ready before.
		return s.decision(nil, "no worker has produced an element yet")
	}
	if s.state == stateStart {
		s.state = stateSearch
	}
	s.left--
	if s.replanned {
		m = s.replan(m, o)
	}
	step := s.step(m)
	s.charge(m, charge{o.at, o.time, w.Seconds})
	if reason != "" {
		step = reason + "; " + step
	}
	return s.decision(m, step)
}

// curves returns the curves of earlier searches. Local workers have a low priority, so a contended host leaves them less than
// its load suggests. When the host is calm again, the curve from before counts until local workers are measured.
func (s *Search) curves() Known {
	known := s.known
	measured := slices.ContainsFunc(s.obs, func(o observation) bool { return o.local > 0 })
	if !measured && s.calm.Rate > 0 && s.obs[len(s.obs)-1].calm() {
		known.Local = s.calm
	}
	return known
}

// begin starts a new search from the current configuration.
func (s *Search) begin() {
	s.state, s.left, s.refuted, s.best, s.monitor = stateSearch, searchWindows, nil, s.target, nil
	s.before, s.charged = s.spent, nil
}

// await handles windows that do not have the wanted workers. It returns whether the policy waits for them.
func (s *Search) await(o observation, reason *string) bool {
	if s.ceiling != nil {
		if s.bounded--; s.bounded <= 0 {
			s.ceiling = nil
			if s.state == stateMonitor {
				*reason = "missing workers are tried again"
				s.begin()
			}
		}
	}
	if o.at == s.target {
		if s.missing = 0; s.ceiling == nil && s.state == stateMonitor {
			s.backoff = firstBackoff
		}
		return false
	}
	if o.at.Remote >= s.target.Remote && o.at.Local >= s.target.Local {
		// There are more workers than wanted. They leave when they have handed over their streams.
		return true
	}
	if s.missing++; s.missing < patience {
		return true
	}
	s.missing = 0
	limit := s.goal.Limits.Max
	if s.ceiling != nil {
		limit = *s.ceiling
	}
	if o.at.Remote < s.target.Remote {
		limit.Remote = o.at.Remote
	}
	if o.at.Local < s.target.Local {
		limit.Local = o.at.Local
	}
	s.ceiling, s.bounded, s.backoff = &limit, s.backoff, min(2*s.backoff, mostBackoff)
	*reason = fmt.Sprintf("wanted workers are missing, so the limit is %v for %d windows", limit, s.bounded)
	s.target = o.at
	s.begin()
	return false
}

// limits returns the limits of the goal and of missing workers.
func (s *Search) limits() autoscale.Limits {
	l := s.goal.Limits
	if s.ceiling != nil {
		l.Max = autoscale.Configuration{Remote: max(s.ceiling.Remote, l.Min.Remote), Local: max(s.ceiling.Local, l.Min.Local)}
	}
	return l
}

func (s *Search) score(m *model, c autoscale.Configuration) float64 {
	return s.goal.Score(c, m.estimate(c)) * (1 + tie*float64(c.Remote+c.Local))
}

// candidate returns the best configuration that is not refuted. The last windows of a search confirm what it has
// found, so then only measured configurations count if one seems better than the best known.
func (s *Search) candidate(m *model) autoscale.Configuration {
	l := s.limits()
	at, lowest := s.best, s.score(m, s.best)
	if l.Clamp(at) != at {
		lowest = math.Inf(1)
	}
	if s.left <= confirmWindows {
		for _, v := range m.cells {
			if score := s.score(m, v.at); score < lowest*(1-s.Margin) && l.Clamp(v.at) == v.at && !slices.Contains(s.refuted, v.at) {
				at, lowest = v.at, score
			}
		}
		if at != s.best {
			return at
		}
	}
	compare := func(remote, local int) {
		c := autoscale.Configuration{Remote: remote, Local: local}
		if score := s.score(m, c); score < lowest && !slices.Contains(s.refuted, c) {
			at, lowest = c, score
		}
	}
	for remote := l.Min.Remote; remote <= l.Max.Remote; remote += stride(remote) {
		for local := l.Min.Local; local <= l.Max.Local; local++ {
			compare(remote, local)
		}
	}
	// The best number of workers lies between the neighbours of the best number that was compared.
	near, local := stride(at.Remote), at.Local
	for remote := max(at.Remote-near, l.Min.Remote); near > 1 && remote <= min(at.Remote+near, l.Max.Remote); remote++ {
		compare(remote, local)
	}
	return at
}

// stride returns the distance to the next number of remote workers that a search compares. Scores change slowly with thousands of
// workers, and there are many configurations.
func stride(remote int) int { return 1 + remote/strideFrom }

// step chooses the next probe, or ends the search.
func (s *Search) step(m *model) string {
	if l := s.limits(); l.Clamp(s.best) != s.best {
		s.best = s.candidate(m)
		s.target = s.best
		return fmt.Sprintf("the best known configuration is outside the limits, so %v is next", s.best)
	}
	if i := m.find(s.target); i >= 0 && len(m.cells[i].logs) == 1 && m.cells[i].ratio > surprise && s.left > 0 && s.target != s.best &&
		s.goal.Score(s.target, m.predict(s.target)) < s.score(m, s.best)*(1-s.Margin) {
		return fmt.Sprintf("%v is %.0f %% slower than predicted and is measured once more", s.target, 100*math.Expm1(m.cells[i].ratio))
	}
	s.improve(m)
	c := s.candidate(m)
	gain := 1 - s.score(m, c)/s.score(m, s.best)
	needed := s.needed(m, c)
	switch {
	case c == s.best || gain < needed || s.left <= 0:
		if s.target = s.best; m.windows(s.best) < 2 && s.left > 0 {
			return fmt.Sprintf("%v seems best and is measured once more", s.best)
		}
		s.end(m)
		if gain >= s.Margin && gain < needed {
			return fmt.Sprintf("%v stays: %v promises %.1f %%, and a probe must promise %.1f %% in %d windows", s.best, c, 100*gain, 100*needed, s.Horizon)
		}
		return fmt.Sprintf("%v is the best: no other promises more than %.1f %%", s.best, 100*max(gain, 0))
	case m.windows(c) == 0:
		s.target = c
		return fmt.Sprintf("%v is predicted to be %.1f %% better than %v", c, 100*gain, s.best)
	case m.windows(c) >= 2 && m.windows(s.best) == 1:
		s.target = s.best
		return fmt.Sprintf("%v seems %.1f %% better than %v, which is measured once more", c, 100*gain, s.best)
	}
	s.target = c
	return fmt.Sprintf("%v seems %.1f %% better than %v and is measured once more", c, 100*gain, s.best)
}

// needed returns the gain that a configuration must promise. One that was measured needs no probe.
func (s *Search) needed(m *model, c autoscale.Configuration) float64 {
	if !s.goal.MinimisesCost() && s.goal.PerHour(c) < s.goal.PerHour(s.best) {
		// Under the other objectives, one worker less at the same speed gains less than the margin.
		return tie
	}
	if s.Horizon > 0 && m.windows(c) == 0 {
		return max(s.Margin, probeWindows/float64(s.Horizon))
	}
	return s.Margin
}

// improve replaces the best known configuration by measured ones that are better.
func (s *Search) improve(m *model) {
	l := s.limits()
	for _, v := range m.cells {
		if v.at == s.best || l.Clamp(v.at) != v.at || slices.Contains(s.refuted, v.at) {
			continue
		}
		last := s.left <= 0 && len(v.logs) > 1 && s.score(m, v.at) < s.score(m, s.best)
		if last || s.verdict(m, v.at) == better {
			s.refuted = append(s.refuted, s.best)
			s.best = v.at
		}
	}
}

func (s *Search) verdict(m *model, challenger autoscale.Configuration) verdict {
	difference := math.Log(s.score(m, challenger) / s.score(m, s.best))
	return compare(difference, m.windows(challenger), m.windows(s.best))
}

func (s *Search) end(m *model) {
	s.state, s.searched = stateMonitor, s.Horizon
	var here []observation
	for _, o := range s.obs {
		if o.at == s.best {
			here = append(here, o)
		}
	}
	s.monitor = newMonitor(here)
	s.known.Remote, s.known.Local, s.known.Load = m.remote, m.local, m.load
	if slices.ContainsFunc(s.obs, func(o observation) bool { return o.local > 0 && o.calm() }) {
		s.calm = m.local
	}
}

func (s *Search) decision(m *model, reason string) autoscale.Decision {
	if !s.goal.Priced() {
		reason += " (without prices, the goal is full speed with few workers)"
	}
	d := autoscale.Decision{
		Target: s.target, State: s.state, Converged: s.state == stateMonitor, Reason: reason,
		SearchCost: s.spent.cost, SearchWindows: s.windows, SearchLost: s.spent.lost, SearchBill: s.spent.bill,
	}
	if m == nil {
		return d
	}
	for _, v := range m.cells {
		d.Candidates = append(d.Candidates, autoscale.Candidate{
			Workers: v.at, Predicted: m.predict(v.at), Measured: math.Exp(autoscale.Median(v.logs)),
			Windows: len(v.logs), Score: s.score(m, v.at),
		})
	}
	if c := s.candidate(m); m.find(c) < 0 {
		d.Candidates = append(d.Candidates, autoscale.Candidate{Workers: c, Predicted: m.estimate(c), Score: s.score(m, c)})
	}
	slices.SortStableFunc(d.Candidates, func(a, b autoscale.Candidate) int {
		if a.Score < b.Score {
			return -1
		}
		return 1
	})
	return d
}
