package autocache

import (
	"math"

	"github.com/pecan-ml/pecan/policies/autoscale"
)

// Epoch is the prediction for one epoch.
type Epoch struct {
	// Workers is the best number of workers for it.
	Workers autoscale.Configuration
	Seconds float64
	// Cost is its price with that of the storage, in the currency of the prices; 0 without prices.
	Cost float64
	// Score is the value that the objective minimises.
	Score float64
	// Bound is the part that limits its speed.
	Bound Bound
	// perHour is the price of an hour, which stands for proportions only if there are no prices.
	perHour float64
}

// Bound names the part that limits the speed of an epoch.
type Bound string

// The bounds.
const (
	ByTrainer Bound = "the trainers"
	ByWorkers Bound = "the workers"
	BySource  Bound = "the source"
	ByStore   Bound = "the store"
)

// demand is the time for which an epoch needs each resource. Resources are the trainers, the threads of all workers, and
// source and store. The last two count for one worker alone, and for all workers. While one stream of a worker waits for a
// resource, other streams use the others. So the resource that is needed for the longest time decides the time of the epoch.
type demand struct {
	trainer, work             float64
	sourceAlone, sourceShared float64
	storeAlone, storeShared   float64
}

// add returns d + share × other.
func (d demand) add(share float64, other demand) demand {
	return demand{
		d.trainer + share*other.trainer, d.work + share*other.work,
		d.sourceAlone + share*other.sourceAlone, d.sourceShared + share*other.sourceShared,
		d.storeAlone + share*other.storeAlone, d.storeShared + share*other.storeShared,
	}
}

// computing is the demand of an epoch without a cache.
func (in *Input) computing() demand {
	p := &in.Pipeline
	return demand{
		trainer: min(in.demanded(), in.shortest()), work: p.Seconds,
		sourceAlone: p.Source.Alone.Of(p.SourceElements, p.SourceBytes), sourceShared: p.Source.Shared.Of(p.SourceElements, p.SourceBytes),
	}
}

// reading is the demand of an epoch that reads all elements of a candidate.
func (in *Input) reading(c Candidate) demand {
	rest := demand{trainer: in.computing().trainer, work: max(in.Pipeline.Seconds-c.Seconds*c.Elements, 0)}
	return rest.add(1, in.Store.Read.demand(c))
}

func (a Access) demand(c Candidate) demand {
	return demand{
		work: a.Work.Of(c.Elements, c.size()), storeAlone: a.Alone.Of(c.Elements, c.size()), storeShared: a.Shared.Of(c.Elements, c.size()),
	}
}

// fleet is a configuration with what it can do. score is the score of a second without storage.
type fleet struct {
	at autoscale.Configuration
	// perThread and perWorker are the shares of the work that one thread and one worker do.
	perThread, perWorker float64
	perHour, score       float64
}

// fleets lists the configurations within the limits that have a thread.
func (in *Input) fleets() []fleet {
	l := in.Goal.Limits
	all := make([]fleet, 0, (l.Max.Remote-l.Min.Remote+1)*(l.Max.Local-l.Min.Local+1))
	for remote := l.Min.Remote; remote <= l.Max.Remote; remote++ {
		for local := l.Min.Local; local <= l.Max.Local; local++ {
			if f := in.fleet(autoscale.Configuration{Remote: remote, Local: local}); !math.IsInf(f.perThread, 1) {
				all = append(all, f)
			}
		}
	}
	return all
}

// fleet returns what a configuration can do. Without a thread it needs forever.
func (in *Input) fleet(at autoscale.Configuration) fleet {
	threads := float64(at.Remote)*in.Workers.Remote + float64(at.Local)*in.Workers.Local
	f := fleet{at: at, perThread: 1 / threads, perWorker: 1 / float64(at.Remote+at.Local), perHour: in.Goal.PerHour(at)}
	f.score = in.Goal.ScoreAt(f.perHour, 1)
	return f
}

// seconds returns the time of an epoch with a demand and a configuration.
func (d demand) seconds(f *fleet) float64 {
	return max(d.trainer, d.sourceShared, d.storeShared, d.work*f.perThread, max(d.sourceAlone, d.storeAlone)*f.perWorker)
}

// rent is the price of a cache: for each hour in which an epoch runs, and for the other hours, once in each epoch.
type rent struct {
	perHour, perEpoch float64
}

// during returns the price for each hour of an epoch that takes so many seconds.
func (r rent) during(seconds float64) float64 { return r.perHour + r.perEpoch*secondsPerHour/seconds }

// epoch predicts an epoch with the best of the configurations, and with the price of a cache.
func (in *Input) epoch(d demand, storage rent, all []fleet) Epoch {
	free := storage == rent{}
	perHourOf := func(f *fleet) float64 {
		if seconds := d.seconds(f); !free && seconds > 0 {
			return f.perHour + storage.during(seconds)
		}
		return f.perHour
	}
	scoreOf := func(f *fleet) float64 { return in.Goal.ScoreAt(perHourOf(f), 1) }
	// Without rent, the scores are known. Rent makes every score higher, so few others need to be computed.
	chosen, lowest := &all[0], math.Inf(1)
	for i := range all {
		if score := d.seconds(&all[i]) * all[i].score; score < lowest {
			chosen, lowest = &all[i], score
		}
	}
	if !free {
		lowest = d.seconds(chosen) * scoreOf(chosen)
		for i := range all {
			f := &all[i]
			if s := d.seconds(f); s*f.score < lowest {
				if score := s * scoreOf(f); score < lowest {
					chosen, lowest = f, score
				}
			}
		}
	}
	best := Epoch{Workers: chosen.at, Seconds: d.seconds(chosen), Score: lowest, perHour: perHourOf(chosen)}
	if in.Goal.Priced() {
		best.Cost = best.Seconds * best.perHour / secondsPerHour
	}
	switch best.Seconds {
	case d.trainer:
		best.Bound = ByTrainer
	case d.work * chosen.perThread:
		best.Bound = ByWorkers
	case max(d.sourceShared, d.sourceAlone*chosen.perWorker):
		best.Bound = BySource
	default:
		best.Bound = ByStore
	}
	return best
}

const secondsPerHour = 3600
