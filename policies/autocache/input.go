package autocache

import (
	"fmt"
	"math"

	"github.com/pecan-ml/pecan/policies/autoscale"
)

// None is the choice to cache nothing.
const None = -1

// Input is the input of Decide. All times are in seconds, all sizes in bytes.
type Input struct {
	// Goal has objective, prices and limits of the job's workers. If nobody chooses their number, the limits allow
	// the existing workers only.
	Goal     autoscale.Goal
	Pipeline Pipeline
	Workers  Workers
	Store    Store
	// Own is the number of epochs that the job is expected to begin from now on, the next one included.
	Own float64
	// Current is the number of the candidate in force, or None. Tried is set if it is in force only to be measured.
	Current int
	Tried   bool
}

// Pipeline has the measurements of a dataset's steps in the order in which they run. Sums are over one epoch.
type Pipeline struct {
	// Elements is the number of elements that trainers get, Demand the time in which one trainer takes an element
	// if it never waits.
	Elements, Demand float64
	// Seconds is the time that threads of workers spend on all steps.
	Seconds float64
	// SourceElements and SourceBytes are read from the source, over Source.
	SourceElements, SourceBytes float64
	Source                      Link
	// Computed are epochs of the job that computed all elements. Tries is the number of epochs that began as tries of that.
	Computed []Measured
	Tries    int
	// Candidates are the steps whose elements may be cached, from the source to the trainer.
	Candidates []Candidate
}

// Candidate is a step whose elements may be cached.
type Candidate struct {
	// Name is the name of its node in the registered graph.
	Name string
	// Illegal is the reason why its elements cannot be cached; empty if they can.
	Illegal string
	// Seconds is the time that a thread spends on one element of this step, with all steps upstream.
	Seconds float64
	// Elements is the number of elements of this step in an epoch, Bytes the mean size of one in the store.
	Elements, Bytes float64
	// Stored is the share of the elements that the store has already, 0 to 1.
	Stored float64
	// Read are epochs of the job that read all elements. Tries is the number of epochs that began as tries of that.
	Read  []Measured
	Tries int
	// Others has the epochs of later jobs that could read its cache.
	Others Others
	// Role is the role of the candidate in the published policy.
	Role Role
}

// Role is the role of a candidate in the published policy.
type Role int

// Roles: the first step after the source, and the end of the pipeline.
const (
	NoRole Role = iota
	SourceCache
	FullCache
)

func (c Candidate) size() float64 { return c.Elements * c.Bytes }

// Workers has the threads of one worker of each kind that compute at once.
type Workers struct {
	Remote, Local float64
}

// Rate is a time per element and per byte.
type Rate struct {
	PerElement, PerByte float64
}

// Of returns the time for elements with so many bytes in all.
func (r Rate) Of(elements, bytes float64) float64 { return elements*r.PerElement + bytes*r.PerByte }

// Link has the limits of the speed of a source or a store. Alone is the time of one worker that uses it alone. Shared is
// the time of the whole: all workers together are no faster.
type Link struct {
	Alone, Shared Rate
}

// Access is the price of reading or writing a cache.
type Access struct {
	Link
	// Work is the time that a thread of a worker spends.
	Work Rate
}

// Store describes the directory of caches.
type Store struct {
	Read, Write Access
	// Price is that of a byte and hour, in the currency of Goal.Prices. It has no effect without those.
	Price float64
	// Free is how many bytes the job may write; +Inf is no bound.
	Free float64
}

// Validate returns what is wrong with an input. Values of single candidates that make no sense are no error: Decide
// leaves the candidate out.
func (in Input) Validate() error {
	if err := in.Goal.Validate(); err != nil {
		return err
	}
	p := in.Pipeline
	for _, v := range []struct {
		name  string
		value float64
	}{
		{"Elements", p.Elements}, {"Demand", p.Demand}, {"Seconds", p.Seconds}, {"SourceElements", p.SourceElements}, {"SourceBytes", p.SourceBytes},
		{"Own", in.Own}, {"Price", in.Store.Price},
		{"Workers.Remote", in.Workers.Remote}, {"Workers.Local", in.Workers.Local},
	} {
		if !known(v.value) {
			return fmt.Errorf("%s is %v; it is finite and not negative", v.name, v.value)
		}
	}
	read, write := in.Store.Read, in.Store.Write
	for _, r := range []Rate{p.Source.Alone, p.Source.Shared, read.Alone, read.Shared, read.Work, write.Alone, write.Shared, write.Work} {
		if !known(r.PerElement) || !known(r.PerByte) {
			return fmt.Errorf("a rate is %v; rates are finite and not negative", r)
		}
	}
	if !(in.Store.Free >= 0) {
		return fmt.Errorf("the free space is %v; it is not negative", in.Store.Free)
	}
	if in.Current < None || in.Current >= len(p.Candidates) {
		return fmt.Errorf("candidate %d is in force, but there are %d", in.Current, len(p.Candidates))
	}
	m := in.Goal.Limits.Max
	if !(in.Workers.Remote > 0 && m.Remote > 0 || in.Workers.Local > 0 && m.Local > 0) {
		return fmt.Errorf("no worker that the limits allow has a thread")
	}
	return nil
}

// known reports whether a value is a measurement.
func known(v float64) bool { return v >= 0 && !math.IsInf(v, 1) }

func (c Candidate) measured() bool {
	return known(c.Seconds) && c.Elements > 0 && known(c.Elements) && c.Bytes > 0 && known(c.Bytes) && c.Stored >= 0 && c.Stored <= 1 &&
		known(c.Others.Epochs) && known(c.Others.Hours)
}
