package autocache

import "fmt"

// Point is a measured time to read an element of so many bytes.
type Point struct {
	Bytes, Seconds float64
}

// glusterFS is the table of read times that the code of Cachew has. It was measured once, on one deployment.
var glusterFS = []Point{
	{0.1e6, 0.00376e-3}, {1e6, 0.2549e-3}, {5e6, 5.627e-3}, {10e6, 11.94e-3}, {15e6, 13.68e-3}, {20e6, 22.25e-3}, {25e6, 26.34e-3},
	{30e6, 30.50e-3}, {50e6, 75.10e-3}, {75e6, 112.8e-3}, {100e6, 155.0e-3}, {200e6, 306.6e-3}, {400e6, 624.7e-3},
}

// Cachew is the policy of Graur et al., "Cachew: Machine Learning Input Data Processing as a Service" (USENIX ATC 2022),
// section 4.2, for comparison. It compares three times: to compute everything, to read the source cache and compute the
// rest, and to read the full cache. It assumes that nothing runs at the same time. Reading the source is part of computing.
// It ignores the price of writing and of storage, the number of epochs, the free space, the bandwidth that workers share,
// and the trainers.
type Cachew struct {
	// Table has the times to read an element, by ascending size.
	Table []Point
	// Similar is the share of the time that a source cache must save. The paper prefers computing at similar speed
	// and gives no number.
	Similar float64
}

// CachewPaper returns the policy of the paper. In its results, a source cache that was 1 % faster was chosen once and
// refused once.
func CachewPaper() Cachew { return Cachew{Table: glusterFS, Similar: 0.01} }

// CachewCode returns the policy of the published code, which compares plainly.
func CachewCode() Cachew { return Cachew{Table: glusterFS} }

// Decide returns the fastest of computing, the source cache and the full cache. Candidates without a role do not count.
func (w Cachew) Decide(p Pipeline) Decision {
	source := max(p.Source.Alone.Of(p.SourceElements, p.SourceBytes), p.Source.Shared.Of(p.SourceElements, p.SourceBytes))
	d := Decision{Choice: None, Candidates: make([]Prediction, len(p.Candidates)), Compute: Epoch{Seconds: p.Seconds + source}}
	fastest := d.Compute.Seconds
	for i, c := range p.Candidates {
		o := &d.Candidates[i]
		o.Name = c.Name
		switch {
		case c.Illegal != "" || !c.measured():
			o.Reason = whyNot(c)
			continue
		case c.Role == NoRole:
			o.Reason = "it is neither the source cache nor the full cache"
			continue
		}
		read := c.Elements * w.readTime(c.Bytes)
		o.Eligible, o.Bytes, o.Share = true, c.size(), 1
		o.Get = Epoch{Seconds: read + p.Seconds - c.Elements*c.Seconds}
		o.Reason = fmt.Sprintf("%s to read and compute the rest instead of %s", seconds(o.Get.Seconds), seconds(d.Compute.Seconds))
		limit := fastest
		if c.Role == SourceCache {
			limit = min(limit, d.Compute.Seconds*(1-w.Similar))
		}
		if o.Get.Seconds < limit {
			d.Choice, fastest = i, o.Get.Seconds
		}
	}
	if d.Reason = "computing is fastest"; d.Choice != None {
		d.Reason = "the cache at " + p.Candidates[d.Choice].Name + " is fastest"
	}
	return d
}

// readTime interpolates the table linearly, and extrapolates it at both ends.
func (w Cachew) readTime(bytes float64) float64 {
	t := w.Table
	if len(t) < 2 {
		return 0
	}
	i := 1
	for i < len(t)-1 && bytes > t[i].Bytes {
		i++
	}
	a, b := t[i-1], t[i]
	return max(a.Seconds+(bytes-a.Bytes)/(b.Bytes-a.Bytes)*(b.Seconds-a.Seconds), 0)
}
