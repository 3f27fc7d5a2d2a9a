package schedule_test

import (
	"cmp"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/dispatcher/core/durable"
	"github.com/pecan-ml/pecan/service/dispatcher/core/schedule"
)

// division is the rule of the scheduler, without anything that is kept between two runs. For each lease it looks at all
// streams of all epochs and at all workers.
type division struct {
	t               *testing.T
	state           *durable.State
	workers         []schedule.Worker
	tenants         map[string]schedule.Tenant
	members, locals map[string]map[string]bool
	only            map[string]bool
	// last has the number of the last lease of each tenant, job and epoch.
	last    *lastLeases
	epochs  []*epochDemand
	granted []string
}

// lastLeases numbers leases, over all runs.
type lastLeases struct {
	n  float64
	of map[string]float64
}

func names(epoch *durable.Epoch) [3]string {
	return [3]string{"tenant " + epoch.Job.Options.EffectiveTenant(), epoch.Job.JobId, fmt.Sprint(epoch.Job.JobId, "/", epoch.Epoch)}
}

func (l *lastLeases) count(epoch *durable.Epoch) {
	l.n++
	for _, name := range names(epoch) {
		l.of[name] = l.n
	}
}

func (l *lastLeases) clone() *lastLeases { return &lastLeases{l.n, maps.Clone(l.of)} }

type workerLoad struct {
	running, held int
	prefetchJobs  map[string]bool
}

type epochDemand struct {
	epoch          *durable.Epoch
	waiting        []uint32
	running, order int
	// unread streams are produced and not delivered.
	unread            int
	prefetch, skipped bool
}

func (d *division) load(id string) *workerLoad {
	l := &workerLoad{prefetchJobs: map[string]bool{}}
	for _, held := range d.state.Leases(id) {
		stream, job := held.Epoch.Find(held.Stream), held.Epoch.Job.JobId
		if durable.AllPrefetched(held.Epoch) && !stream.Delivered && !l.prefetchJobs[job] {
			l.prefetchJobs[job] = true
			continue
		}
		if schedule.Running(held.Epoch, stream) {
			l.running++
		}
		if !stream.Delivered {
			l.held++
		}
	}
	return l
}

func (d *division) demand(epoch *durable.Epoch, order int) *epochDemand {
	w := &epochDemand{epoch: epoch, prefetch: durable.AllPrefetched(epoch), order: order}
	for number := range epoch.Total() {
		stream := epoch.Stream(number)
		if stream.Worker == nil && !epoch.Settled(number) && schedule.Needed(epoch, stream) {
			w.waiting = append(w.waiting, number)
		}
		if stream.Worker != nil && schedule.Running(epoch, stream) {
			w.running++
		}
		if stream.Worker != nil && !stream.Delivered && stream.Produced {
			w.unread++
		}
	}
	return w
}

func (d *division) tenantOf(e *epochDemand) (string, schedule.Tenant) {
	name := e.epoch.Job.Options.EffectiveTenant()
	if tenant, known := d.tenants[name]; known {
		return name, tenant
	}
	return name, schedule.Tenant{Weight: 1}
}

// next returns the epoch whose turn is next; nil without one. Prefetched ones come after all others.
func (d *division) next(prefetch bool) (best *epochDemand) {
	var bestRank []any
	for _, e := range d.epochs {
		if e.skipped || len(e.waiting) == 0 || e.prefetch != prefetch || d.bounded(e) || !prefetch && e.waiting[0] >= e.epoch.Regular() {
			continue
		}
		name, tenant := d.tenantOf(e)
		_, _, ofTenant, ofJob := d.slots(e)
		last := names(e.epoch)
		rank := []any{
			float64(ofTenant) / tenant.Weight, d.last.of[last[0]], name,
			float64(ofJob) / e.epoch.Job.Options.EffectiveWeight(), d.last.of[last[1]], float64(e.epoch.Job.Sequence),
			float64(e.running), d.last.of[last[2]], float64(e.order),
		}
		if prefetch {
			rank = []any{float64(e.running), float64(e.order)}
		}
		if best == nil || slices.CompareFunc(rank, bestRank, compareAny) < 0 {
			best, bestRank = e, rank
		}
	}
	return best
}

func compareAny(a, b any) int {
	if name, isName := a.(string); isName {
		return cmp.Compare(name, b.(string))
	}
	return cmp.Compare(a.(float64), b.(float64))
}

func (d *division) run() {
	for _, job := range d.state.Jobs() {
		for _, epoch := range job.Epochs {
			d.epochs = append(d.epochs, d.demand(epoch, len(d.epochs)))
		}
	}
	for _, e := range d.epochs {
		if e.prefetch {
			continue
		}
		below := e.mustBeOpen()
		for len(e.waiting) > 0 && e.waiting[0] < below && d.lease(e, 0, false) {
		}
		if below == 0 && len(e.waiting) > 0 && !e.computes() {
			d.lease(e, 0, false)
		}
	}
	for _, prefetch := range []bool{false, true} {
		for e := d.next(prefetch); e != nil; e = d.next(prefetch) {
			e.skipped = !d.lease(e, 0, true)
		}
	}
	for _, e := range d.epochs {
		at := 0
		for !e.prefetch {
			for at < len(e.waiting) && e.waiting[at] < e.epoch.Regular() {
				at++
			}
			if at == len(e.waiting) || e.sourceWaits(e.waiting[at]) || !d.lease(e, at, false) {
				break
			}
		}
	}
}

// mustBeOpen returns below which number streams must be open together.
func (e *epochDemand) mustBeOpen() uint32 {
	plan, regular := e.epoch.Job.Plan, e.epoch.Regular()
	deterministic := e.epoch.Job.Options.Mode == pecanv1.Mode_MODE_DETERMINISTIC
	groups := plan.Group > 0 && plan.NumStreams > plan.Group
	if groups && (deterministic || plan.Shuffled) {
		for number := range regular {
			if !e.epoch.Stream(number).Delivered {
				group := uint32(plan.Group)
				return min(regular, number-number%group+group)
			}
		}
		return regular
	}
	if deterministic || plan.AllOpen {
		return e.epoch.Total()
	}
	if plan.Shuffled {
		return regular
	}
	return 0
}

// computes reports whether a stream runs, or the trainer has not read all that were produced.
func (e *epochDemand) computes() bool { return e.running+e.unread > 0 }

// sourceWaits reports whether a stream that a closing stream joins waits for a worker.
func (e *epochDemand) sourceWaits(closing uint32) bool {
	first, below := e.epoch.Job.Plan.Sources(closing)
	return slices.ContainsFunc(e.waiting, func(number uint32) bool { return first <= number && number < below })
}

// slots counts the slots of the tenant and of the job of an epoch. running leaves out prefetched epochs.
func (d *division) slots(e *epochDemand) (tenant, job, tenantRunning, jobRunning int) {
	name, _ := d.tenantOf(e)
	for _, other := range d.epochs {
		n := other.running
		if other.prefetch {
			n = 0
		}
		if theirs, _ := d.tenantOf(other); theirs == name {
			tenant, tenantRunning = tenant+other.running, tenantRunning+n
		}
		if other.epoch.Job == e.epoch.Job {
			job, jobRunning = job+other.running, jobRunning+n
		}
	}
	return tenant, job, tenantRunning, jobRunning
}

// bounded reports whether the tenant or the job has its quota.
func (d *division) bounded(e *epochDemand) bool {
	_, tenant := d.tenantOf(e)
	slots, ofJob, _, _ := d.slots(e)
	return tenant.MaxSlots > 0 && slots >= tenant.MaxSlots || tenant.MaxSlotsPerJob > 0 && ofJob >= tenant.MaxSlotsPerJob
}

// lease leases the waiting stream at a position of the list.
func (d *division) lease(w *epochDemand, at int, needRoom bool) bool {
	number := w.waiting[at]
	id := d.pick(w, needRoom)
	if id == "" {
		return false
	}
	w.waiting = slices.Delete(w.waiting, at, at+1)
	grantTo(d.t, d.state, w.epoch, number, id)
	d.last.count(w.epoch)
	d.granted = append(d.granted, fmt.Sprintf("%s/%d/%d to %s", w.epoch.Job.JobId, w.epoch.Epoch, number, id))
	if schedule.Running(w.epoch, w.epoch.Find(number)) {
		w.running++
	}
	return true
}

func (d *division) pick(w *epochDemand, needRoom bool) string {
	best, bestRank := "", [4]int{}
	for _, worker := range d.workers {
		l := d.load(worker.ID)
		slot := l.running < worker.MaxStreams
		room := slot && l.held < 4*worker.MaxStreams
		fits := !needRoom || room || slot && w.unread <= w.running+1
		if w.prefetch {
			fits = room && l.running+len(l.prefetchJobs) < worker.MaxStreams && !l.prefetchJobs[w.epoch.Job.JobId]
		}
		job := w.epoch.Job.JobId
		members, excluded := d.members[job], (worker.Local || d.only[job]) && !d.locals[job][worker.ID]
		if !worker.Usable || !fits || members != nil && !members[worker.ID] || excluded {
			continue
		}
		rank := [4]int{0, l.running, l.held, int(worker.Order)}
		if w.prefetch {
			rank[0] = len(l.prefetchJobs)
		}
		if best == "" || slices.Compare(rank[:], bestRank[:]) < 0 {
			best, bestRank = worker.ID, rank
		}
	}
	return best
}

// The scheduler looks at what has changed, and grants the leases that a look at everything grants. No stream keeps rows back
// here: a delivered stream that runs again for its rows is not counted as one that its epoch computes.
func TestTheSchedulerGrantsWhatALookAtEverythingGrants(t *testing.T) {
	leases := 0
	for seed := range uint64(60) {
		rng := rand.New(rand.NewPCG(seed, 0))
		h := &host{t: t, state: durable.NewState(), members: map[string]map[string]bool{}, locals: map[string]map[string]bool{}, only: map[string]bool{}, last: &lastLeases{of: map[string]float64{}}}
		tenants := map[string]schedule.Tenant{"a": {Weight: 2, MaxSlots: 4}, "b": {Weight: 0.5, MaxSlotsPerJob: 2}}
		h.schedule = schedule.New(h, h.state, 0, tenants)
		var workers []schedule.Worker
		for range 150 {
			change(t, h, &workers, rng)
			data, err := h.state.Marshal()
			if err != nil {
				t.Fatal(err)
			}
			before, err := durable.Restore(data)
			if err != nil {
				t.Fatal(err)
			}
			d := &division{t: t, state: before, workers: workers, tenants: tenants, members: h.members, locals: h.locals, only: h.only, last: h.last.clone()}
			d.run()
			h.granted = nil
			h.schedule.Run(false)
			leases += len(h.granted)
			if !slices.Equal(h.granted, d.granted) {
				t.Fatalf("seed %d: the scheduler grants\n%q\nand a look at everything\n%q", seed, h.granted, d.granted)
			}
		}
	}
	if leases < 1000 {
		t.Errorf("%d leases", leases)
	}
}
