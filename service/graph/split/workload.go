package split

import (
	"fmt"
	"math"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/graph"
	"github.com/pecan-ml/pecan/service/graph/analysis"
	"github.com/pecan-ml/pecan/service/graph/ops"
)

const (
	// secondsPerStream is the work that makes a stream worth opening: a hundred times the cost of an opening.
	secondsPerStream = 0.4
	// bytesPerStream is the same for files whose cost is not known.
	bytesPerStream = 32 << 20
	// buffersPerStream is how many shuffle buffers of elements a stream over files has at least. A buffer does not
	// reach beyond its stream, so short streams mix little.
	buffersPerStream = 8
	// batchesPerStream is how many full batches a stream has at least, if the closing stream joins the short last ones. On
	// average, such a batch has half of the rows, so at most a sixteenth of the rows passes through the closing stream.
	batchesPerStream = 8
	// A stream with longStreamSeconds of CPU or longStreamBytes of files may have fewer batches: more workers gain more than the
	// joined rows cost.
	longStreamSeconds = 10
	longStreamBytes   = 1 << 30
	// secondsPerPassed is the time in which a stream passes over an element of another stream at the cut.
	secondsPerPassed = 1e-6
	// maxCachedStreams bounds the segments of a cache.
	maxCachedStreams = 4096
	// maxDivided is the largest number of splits that groups divide. Positions in longer sources may overflow.
	maxDivided = 1 << 40
)

// elementsPerStream is the same as secondsPerStream for sources that do not read files, by the weight of the work.
var elementsPerStream = map[int]int64{analysis.WeightNone: 1 << 16, analysis.WeightLight: 1 << 14, analysis.WeightHeavy: 128}

// workload decides the number of streams of a large dataset.
type workload struct {
	// splits is the number of splits of the source, unlimitedSplits if it is not known or has no end.
	splits int64
	// elements is the number of elements at the cut.
	elements int64
	// weight is the heaviest work downstream of the cut.
	weight int
	// files is set if the splits are files, with fileBytes bytes, 0 if that is not known.
	files     bool
	fileBytes int64
	// seconds is the CPU of an epoch in an earlier job, 0 if it is not known.
	seconds float64
	// buffer is the buffer of a shuffle whose input has several elements for each split, 0 without one. shuffled is the
	// number of its elements.
	buffer   int64
	shuffled count
	// batch is the number of rows of a batch whose short last ones the closing stream joins, 0 without one. rows is the number
	// of rows in an epoch.
	batch int64
	rows  count
	// passes is set if a stream reads the elements of the other streams at the cut, and drops them.
	passes bool
	cached bool
	// inTurn is set in mode deterministic: all streams of an epoch without groups are open together.
	inTurn bool
	// private is a step for which every stream needs an iterator of its own, "" without one.
	private string
}

// count is a number of elements or rows, 0 if it is not known. estimated is set if it comes from the sizes of sampled records.
type count struct {
	n         int64
	estimated bool
}

// words returns the number with what it counts.
func (c count) words(of string) string {
	if c.estimated {
		return fmt.Sprintf("about %d %s (estimated from the sizes of sampled records)", c.n, of)
	}
	return fmt.Sprintf("%d %s", c.n, of)
}

// streams returns S, at least defaultGroup, and a sentence that gives the reason.
func (w workload) streams() (int64, string) {
	if w.splits > maxDivided {
		return defaultGroup, fmt.Sprintf("There are %d streams: the source is very long, or its length is not known.", defaultGroup)
	}
	n, why := w.splits, fmt.Sprintf("each of the %d splits has a stream of its own", w.splits)
	bound := func(most int64, format string, args ...any) {
		if most < n {
			n, why = most, fmt.Sprintf(format, args...)
		}
	}
	if most, measured := w.measured(); measured != "" {
		bound(most, "%s", measured)
	} else if !w.files {
		per := elementsPerStream[w.weight]
		bound(w.elements/per, "the source has %d elements, and %d of them make a stream worth opening", w.elements, per)
	}
	if w.passes {
		seconds := w.seconds
		if seconds == 0 {
			seconds = float64(w.elements) * secondsPerStream / float64(elementsPerStream[w.weight])
		}
		bound(floor(seconds/10/secondsPerPassed/float64(max(w.elements, 1))), "every stream reads all %d elements at the cut, which must stay below a tenth of the work", w.elements)
	}
	if w.buffer > 0 && w.shuffled.n == 0 {
		bound(defaultGroup, "the dataset is shuffled, and the number of its elements is not known before a job has counted them")
	} else if w.buffer > 0 {
		bound(w.shuffled.n/(w.buffer/(defaultGroup/buffersPerStream)+1), "the shuffle holds %d of %s; to mix as a local run does, a stream must have %d times its part of the buffer",
			w.buffer, w.shuffled.words("elements"), buffersPerStream)
	}
	if w.batch > 0 && w.rows.n > 0 {
		bound(max(w.rows.n/w.batch/batchesPerStream, floor(w.seconds/longStreamSeconds), w.fileBytes/longStreamBytes), "an epoch has %s, and a stream has at least %d batches of %d, because its last one may be short",
			w.rows.words("rows"), batchesPerStream, w.batch)
	}
	if w.cached {
		bound(maxCachedStreams, "a cache has at most %d segments", maxCachedStreams)
	}
	bound(maxStreams, "no dataset gets more than %d", maxStreams)
	if w.private != "" {
		bound(defaultGroup, "%s keeps a state, so each stream needs an iterator of its own, which takes tens of milliseconds to open", w.private)
	}
	if n < defaultGroup {
		return defaultGroup, fmt.Sprintf("There are %d streams, because a dataset with enough splits has at least this many; %s.", defaultGroup, why)
	}
	return n, fmt.Sprintf("There are %d streams: %s.", n, why)
}

// measured returns how many streams an epoch needs, and a clause that gives the reason. The number follows from the CPU time
// of an earlier job or from the size of the files. The clause is empty if neither is known.
func (w workload) measured() (streams int64, why string) {
	switch {
	case w.seconds > 0:
		return floor(w.seconds / secondsPerStream), fmt.Sprintf("an earlier job spent %.3g s of CPU on an epoch, and %g s make a stream worth opening", w.seconds, secondsPerStream)
	case w.files && w.fileBytes > 0:
		return w.fileBytes / bytesPerStream, fmt.Sprintf("the files have %d MB, and %d MB make a stream worth opening", w.fileBytes>>20, bytesPerStream>>20)
	}
	return 0, ""
}

// worth reports whether an epoch has the work of this many streams, as far as that is known.
func (w workload) worth(streams int64) bool {
	switch {
	case w.seconds > 0:
		return w.seconds >= float64(streams)*secondsPerStream
	case w.files && w.fileBytes > 0 && w.weight == analysis.WeightHeavy:
		// Heavy steps take about ten times as long for a byte as others.
		return w.fileBytes >= streams*bytesPerStream/8
	case w.files:
		return w.fileBytes == 0 || w.fileBytes >= streams*bytesPerStream
	}
	return w.elements == 0 || w.elements >= streams*elementsPerStream[w.weight]
}

func floor(x float64) int64 { return int64(min(math.Floor(x), float64(maxDivided))) }

// workload collects what S follows.
func (p *Planner) workload(root *graph.Step, d Division, plan *pecanv1.Plan, env Env) workload {
	w := workload{
		splits: d.splitCount, weight: p.tailWeight(root, d), files: allFiles(d) || anyExtents(d), fileBytes: env.FileBytes, passes: !p.cutIsFree(d),
		cached: p.cacheMarks(root) > 0, inTurn: plan.GetMode() == pecanv1.Mode_MODE_DETERMINISTIC,
	}
	for _, e := range d.Edges {
		w.elements = max(w.elements, p.Cardinality(e.at))
	}
	profile := env.Profile
	if w.inTurn {
		// A later job with the same seed gets the same order, whatever an earlier one has measured.
		profile = nil
	}
	scale := p.scaleOf(root, profile)
	reached := map[string]float64{}
	for _, n := range profile {
		w.seconds += n.GetSelfCpuS() * scale
		reached[n.GetNode()] = float64(n.GetElements()) * scale
	}
	sequenced := p.SequencedSteps(root, plan.GetMode())
	root.Walk(func(s *graph.Step) {
		name, f := s.Node.GetName(), p.Facts(s)
		if sequenced[name] || f.Stateful || f.WritesVariables || (f.Random || f.Unrepeatable) && !p.Keyed[name] || plan.GetWritesFiles() && s.Rule.Kind == ops.Cached {
			w.private = name
		}
	})
	counted := func(s *graph.Step, measured float64) count {
		if n := p.Cardinality(s); n > 0 {
			return count{n: n}
		}
		if n := floor(measured); n > 0 {
			return count{n: n}
		}
		return count{p.estimate(s, env.FileRecords), true}
	}
	if d.Batch != nil && d.Batch.Rule.Kind == ops.Batched {
		w.batch, _ = p.batchRows(d.Batch)
		w.rows = counted(d.Batch.In[0], reached[name(d.Batch.In[0])])
	}
	eachTail(root, d, func(s *graph.Step) {
		size, ok := p.g.InputInt(s.Node, "buffer_size")
		if s.Rule.Kind != ops.Shuffled || !ok || size <= w.buffer || !p.expandsBetween(s, d) {
			return
		}
		w.buffer = size
		w.shuffled = counted(s, max(reached[name(s)], reached[name(s.In[0])]))
	})
	return w
}

// estimate returns about the number of elements of a step, if the files of a list have this many records. It returns 0 if
// the step has no element for each record or batch of records.
func (p *Planner) estimate(s *graph.Step, records int64) int64 {
	switch s.Rule.Kind {
	case ops.OneToOne, ops.PassThrough, ops.Shuffled, ops.Cached, ops.Asserted:
		return p.estimate(s.In[0], records)
	case ops.Batched:
		if size, ok := p.groupSize(s); ok {
			return p.estimate(s.In[0], records) / size
		}
	case ops.PerElement:
		files := s.In[0]
		if !p.namesFiles(files) || !givesRecords(p.g, p.g.Attr(s.Node, "f").GetFunc().GetName()) {
			return 0
		}
		list := files
		for len(list.In) > 0 {
			list = list.In[0]
		}
		if used, all := p.Cardinality(files), p.Cardinality(list); used > 0 && all > 0 {
			return floor(float64(records) * float64(used) / float64(all))
		}
	}
	return 0
}

// givesRecords reports whether a function returns a dataset with an element for each record of the file that its argument
// names.
func givesRecords(g *graph.Graph, function string) bool {
	body := g.Body(function)
	if body == nil {
		return false
	}
	s, _ := body.Steps()
	for {
		switch s.Rule.Kind {
		case ops.OneToOne, ops.PassThrough, ops.Shuffled, ops.Cached:
			s = s.In[0]
		case ops.PerElement:
			// tf.data.TFRecordDataset calls a function for each file of a list.
			return s.In[0].Node.GetOp() == "TensorSliceDataset" && givesRecords(body, body.Attr(s.Node, "f").GetFunc().GetName())
		default:
			return s.Node.GetOp() == "TFRecordDataset"
		}
	}
}

func name(s *graph.Step) string { return s.Node.GetName() }

// scaleOf returns by how much an epoch is larger than what a profile measured; 0 if that is not known.
func (p *Planner) scaleOf(root *graph.Step, profile []*pecanv1.NodeMetrics) (scale float64) {
	elements := map[string]uint64{}
	for _, n := range profile {
		elements[n.GetNode()] = n.GetElements()
	}
	most := uint64(0)
	root.Walk(func(s *graph.Step) {
		if n, total := elements[name(s)], p.Cardinality(s); n > most && total > 0 {
			most, scale = n, float64(total)/float64(n)
		}
	})
	return scale
}

// expandsBetween reports whether a step between the cut and s returns several elements for one. The elements of a
// split are then neighbours in the source.
func (p *Planner) expandsBetween(s *graph.Step, d Division) (expands bool) {
	eachTail(s, d, func(step *graph.Step) {
		if _, cut := d.Cuts[step]; !cut && step.Rule.Kind == ops.PerElement && step.Node.GetOp() != "FilterDataset" {
			expands = true
		}
	})
	return expands
}
