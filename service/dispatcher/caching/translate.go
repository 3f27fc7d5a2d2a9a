package caching

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/pecan-ml/pecan/policies/autocache"
	"github.com/pecan-ml/pecan/policies/autoscale"
	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/dispatcher/core/measure"
	"github.com/pecan-ml/pecan/service/dispatcher/placing"
)

// inputOf returns the policy's input, or what is missing for it.
func inputOf(facts measure.Caching, prices Prices) (in autocache.Input, waitsFor string) {
	in = autocache.Input{Goal: goalOf(facts, prices), Workers: workersOf(facts), Current: autocache.None}
	if in.Store, waitsFor = storeOf(facts); waitsFor != "" {
		return in, waitsFor
	}
	if in.Pipeline, waitsFor = pipelineOf(facts); waitsFor != "" {
		return in, waitsFor
	}
	in.Current = slices.IndexFunc(facts.Steps, func(s measure.CachedStep) bool { return s.Candidate.Node == facts.Current })
	in.Tried = facts.Tried
	in.Own, in.Store.Price = ownEpochs(facts), prices.Storage
	return in, ""
}

// goalOf returns what the job wants of its workers. If nobody chooses their number, they are those that exist.
func goalOf(facts measure.Caching, prices Prices) autoscale.Goal {
	options := facts.Options.GetPlacement()
	if options.GetObjective() == "" {
		exist := autoscale.Configuration{Remote: facts.Remote, Local: facts.Local}
		return autoscale.Goal{Objective: autoscale.Time, Limits: autoscale.Limits{Min: exist, Max: exist}, Trainers: len(facts.Trainers)}
	}
	goal := placing.Goal(placing.Request{Options: options, Remote: facts.Remote, Local: facts.Local, Prices: prices.Prices})
	goal.Trainers = len(facts.Trainers)
	return goal
}

// workersOf returns the processors of one worker of each kind.
func workersOf(facts measure.Caching) (w autocache.Workers) {
	for _, worker := range facts.Workers {
		cores := float64(max(worker.Cores, 1))
		if worker.Local {
			w.Local += cores / float64(facts.Local)
		} else {
			w.Remote += cores / float64(facts.Remote)
		}
	}
	return w
}

// ownEpochs returns how many epochs the job is expected to begin from now on.
func ownEpochs(facts measure.Caching) float64 {
	if left := facts.Plan.GetRepeat() - int64(facts.Begun); facts.Plan.GetRepeat() > 1 && left > 0 {
		return float64(left)
	}
	return autocache.ExpectOwn(float64(facts.Begun), autocache.PastJobs(facts.Past, facts.UnixS))
}

// flow has the counts of all steps in one epoch, and what was measured of them.
type flow struct {
	steps    map[string]*pecanv1.PlanStep
	measured map[string]*pecanv1.NodeMetrics
	// count is how many elements a step gives in an epoch.
	count map[string]float64
	// waiting is the share of the time of reading in which threads wait only because other workers read too.
	waiting float64
	// computing is the share of the rest of the time in which threads do not wait for a core.
	computing float64
}

// pipelineOf returns the costs of the steps in one epoch.
func pipelineOf(facts measure.Caching) (p autocache.Pipeline, waitsFor string) {
	f := flow{steps: map[string]*pecanv1.PlanStep{}, measured: map[string]*pecanv1.NodeMetrics{}, count: map[string]float64{}}
	for _, node := range facts.Nodes {
		f.measured[node.Node] = node
	}
	for _, step := range facts.Plan.GetSteps() {
		f.steps[step.Node] = step
	}
	if len(facts.Plan.GetSteps()) == 0 {
		return p, "the plan is of an earlier version, which does not list the steps"
	}
	root := facts.Plan.Steps[0].Node
	p.Elements = cmp.Or(float64(facts.Elements), float64(f.measured[root].GetElements()))
	if p.Elements == 0 {
		return p, "no element has come out of the last step yet"
	}
	if missing := f.spread(root, p.Elements); missing != "" {
		return p, fmt.Sprintf("no element has come out of step %s yet", missing)
	}
	read := measure.ReadingOf(facts.Nodes)
	shared := f.fitSource(facts, read)
	f.fitCores(facts.CPUWait, read)
	for _, step := range facts.Plan.Steps {
		p.Seconds += f.seconds(step.Node)
		if len(step.Inputs) == 0 {
			p.SourceElements += f.count[step.Node]
			p.SourceBytes += f.count[step.Node] * f.bytes(step.Node)
		}
	}
	if p.SourceElements > 0 {
		p.Source.Shared.PerElement = shared / p.SourceElements
	}
	for _, s := range facts.Steps {
		c := f.candidate(s)
		c.Others = autocache.ExpectOthers(facts.KeptHours, autocache.PastJobs(s.Past, facts.UnixS))
		c.Read, c.Tries = epochsOf(facts, s.Candidate.Node), facts.Tries[s.Candidate.Node]
		p.Candidates = append(p.Candidates, c)
	}
	p.Demand, p.Computed, p.Tries = demandOf(facts.Trainers), epochsOf(facts, ""), facts.Tries[""]
	return p, ""
}

// epochsOf returns the measured epochs that computed, or that read all elements of a step.
func epochsOf(facts measure.Caching, node string) (measured []autocache.Measured) {
	for _, e := range facts.Epochs {
		if e.Node == node {
			measured = append(measured, autocache.Measured{Workers: autoscale.Configuration{Remote: int(e.Remote), Local: int(e.Local)}, Seconds: e.Seconds, Inherited: e.JobId != facts.JobID})
		}
	}
	return measured
}

// spread counts the elements of the steps upstream of a step that gives n. A step that returns one element for each
// input gets its count from the step downstream, not from the measurement: in the first epoch, buffers hold elements
// that steps upstream have given. spread returns a step about which too little is known; empty if there is none.
func (f *flow) spread(node string, n float64) (missing string) {
	f.count[node] += n
	step := f.steps[node]
	for _, input := range step.GetInputs() {
		in := n
		if step.Counts == pecanv1.PlanStep_MEASURED {
			given, got := float64(f.measured[node].GetElements()), float64(f.measured[input].GetElements())
			if given == 0 {
				return node
			}
			in = n * got / given
		}
		if missing := f.spread(input, in); missing != "" {
			return missing
		}
	}
	return ""
}

// fitSource returns the time in which all workers together read the source of an epoch; 0 if no limit of the source is known.
// Threads then spend the time of reading that they need without other workers.
func (f *flow) fitSource(facts measure.Caching, now measure.Reading) (seconds float64) {
	var samples []autocache.SourceSample
	for _, use := range facts.Source {
		samples = append(samples, autocache.SourceSample{
			Workers: float64(use.Workers), Elements: use.Elements, Seconds: use.Seconds, All: use.All, PerSecond: use.PerSecond,
		})
	}
	shared, each := autocache.FitSource(samples)
	if now.Seconds > 0 && shared.PerElement > 0 {
		f.waiting = max(1-each*now.Elements/now.Seconds, 0)
	}
	for _, node := range facts.Nodes {
		if read := measure.ReadingOf([]*pecanv1.NodeMetrics{node}).Elements; read > 0 && node.Elements > 0 {
			seconds += shared.PerElement * read / float64(node.Elements) * f.count[node.Node]
		}
	}
	return seconds
}

// fitCores finds in which share of the time threads compute. Those that wait for the source are among those that were counted as
// waiting for a core.
func (f *flow) fitCores(cpuWait float64, now measure.Reading) {
	f.computing = 1
	if reads := f.waiting * now.Seconds; now.All > reads {
		f.computing = min((1-cpuWait)*now.All/(now.All-reads), 1)
	}
}

// seconds returns the time of cores that a step itself takes in an epoch.
func (f *flow) seconds(node string) float64 {
	m := f.measured[node]
	if m.GetElements() == 0 {
		return 0
	}
	waits := f.waiting * measure.ReadingOf([]*pecanv1.NodeMetrics{m}).Seconds
	return max(m.SelfCpuS-waits, 0) * f.computing / float64(m.Elements) * f.count[node]
}

// bytes returns the mean size of an element of a step; 0 if it is not known. A step that passes elements on may have no
// metrics.
func (f *flow) bytes(node string) float64 {
	if m := f.measured[node]; m.GetElements() > 0 && m.BytesOut > 0 {
		return float64(m.BytesOut) / float64(m.Elements)
	}
	if step := f.steps[node]; step.GetCounts() == pecanv1.PlanStep_PASSED && len(step.Inputs) == 1 {
		return f.bytes(step.Inputs[0])
	}
	return 0
}

func (f *flow) candidate(s measure.CachedStep) autocache.Candidate {
	node := s.Candidate.Node
	c := autocache.Candidate{Name: cmp.Or(s.Candidate.Name, node), Illegal: s.Problem, Elements: f.count[node], Bytes: f.bytes(node), Stored: min(s.Stored, 1)}
	for _, upstream := range s.Candidate.Plan.GetUpstream() {
		c.Seconds += f.seconds(upstream) / max(c.Elements, 1)
	}
	if s.Held > 0 {
		c.Bytes = float64(s.Bytes) / float64(s.Held)
	}
	switch s.Candidate.Role {
	case pecanv1.CacheCandidate_SOURCE_CACHE:
		c.Role = autocache.SourceCache
	case pecanv1.CacheCandidate_FULL_CACHE:
		c.Role = autocache.FullCache
	}
	return c
}

// demandOf returns the time in which a trainer takes an element if it never waits; 0 if no trainer was measured.
func demandOf(trainers []measure.Trainer) float64 {
	var times []float64
	for _, t := range trainers {
		times = append(times, t.Demand())
	}
	return autoscale.Median(times)
}
