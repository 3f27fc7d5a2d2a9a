package measure

import (
	"math/bits"
	"strings"
	"time"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
)

// Reading is what threads did to read files: the elements that they read, and their time. All is the time of all steps.
type Reading struct {
	Elements, Seconds, All float64
}

// ReadingOf sums the reading of steps.
func ReadingOf(nodes []*pecanv1.NodeMetrics) (sum Reading) {
	for _, node := range nodes {
		own := readingOf(node)
		sum.add(Reading{own.Elements, own.Seconds, node.GetSelfCpuS()})
	}
	return sum
}

// readingOf returns the reading of one step. A step that reads a dataset for each element reads files if its function does. If
// the steps of the function were not measured, all of them count.
func readingOf(node *pecanv1.NodeMetrics) (r Reading) {
	op := node.GetOp()
	switch inside := node.GetInside(); {
	case len(inside) > 0:
		return ReadingOf(inside)
	case strings.HasPrefix(op, "TFRecordDataset"), strings.HasPrefix(op, "FixedLengthRecordDataset"), op == "TextLineDataset",
		strings.Contains(op, "Interleave"), op == "FlatMapDataset":
		return Reading{Elements: float64(node.GetElements()), Seconds: node.GetSelfCpuS()}
	}
	return r
}

// Read returns what a worker has read for a job since its last report. The first report says nothing about the time in which
// it was read.
func (w *Worker) Read(job string, nodes []*pecanv1.NodeMetrics) (since Reading) {
	p, now := w.jobOf(job), ReadingOf(nodes)
	if p.reported && now.Elements >= p.read.Elements && now.Seconds >= p.read.Seconds && now.All >= p.read.All {
		since = Reading{now.Elements - p.read.Elements, now.Seconds - p.read.Seconds, now.All - p.read.All}
	}
	p.read, p.reported = now, true
	return since
}

// SourceUse is what a job has read while so many workers read, or up to twice as many. PerSecond is the highest number of
// elements that all of them together read in a second.
type SourceUse struct {
	Workers int
	Reading
	PerSecond float64
}

// Source measures how a job reads its source, by the number of workers that read. The zero Source is ready.
type Source struct {
	interval interval
	sum      Reading
	// uses are by the logarithm of the number of workers.
	uses []SourceUse
}

// Add adds what a worker has read, as it reports at the time now.
func (s *Source) Add(now time.Duration, worker string, read Reading) {
	if read.Elements == 0 || !s.interval.add(now, worker) {
		return
	}
	s.sum.add(read)
	workers, seconds, ended := s.interval.end(now)
	if !ended {
		return
	}
	level := bits.Len(uint(workers)) - 1
	for len(s.uses) <= level {
		s.uses = append(s.uses, SourceUse{Workers: 1 << len(s.uses)})
	}
	use := &s.uses[level]
	use.add(s.sum)
	use.PerSecond = max(use.PerSecond, s.sum.Elements/seconds)
	s.sum = Reading{}
}

func (r *Reading) add(more Reading) {
	r.Elements, r.Seconds, r.All = r.Elements+more.Elements, r.Seconds+more.Seconds, r.All+more.All
}

// Uses returns what was measured, by ascending numbers of workers. A nil Source has measured nothing.
func (s *Source) Uses() (measured []SourceUse) {
	if s == nil {
		return nil
	}
	for _, use := range s.uses {
		if use.Elements > 0 {
			measured = append(measured, use)
		}
	}
	return measured
}
