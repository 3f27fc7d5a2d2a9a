package schedule

import (
	"cmp"

	"github.com/pecan-ml/pecan/service/dispatcher/core/durable"
)

// Tenant is what one tenant may use.
type Tenant struct {
	// Weight is the tenant's share of the free slots, compared with those of other tenants.
	Weight float64
	// MaxSlots bounds the slots of the tenant. MaxSlotsPerJob bounds the slots of each of its jobs. 0 means no bound.
	MaxSlots, MaxSlotsPerJob int
	// CacheBytes bounds the caches of the tenant. 0 means no bound. The scheduler does not read it.
	CacheBytes int
}

// slotShare is a node of the tree of shares of slots: all tenants, a tenant, a job or an epoch.
type slotShare struct {
	parent *slotShare
	// last is the number of the last lease of a slot. Of two nodes with equal shares, the one with the older lease is next.
	// name and number order nodes that are equal otherwise.
	last   uint64
	name   string
	number uint64
	weight float64
	// most bounds slots; 0: no bound.
	most int
	// running counts the streams that take slots. slots counts those of prefetched epochs too.
	running, slots int
	// children counts the nodes below. queue has those of them that may get a slot.
	children int
	queue    queue[slotShare]
	// at is the position in the queue of the parent, -1 outside of it.
	at int
	// demand is the demand of an epoch; nil in other nodes. waits is set if it has a stream that waits for a slot.
	demand *demand
	waits  bool
}

// perWeight is how many slots the node has for its weight.
func (n *slotShare) perWeight() float64 { return float64(n.running) / n.weight }

func (n *slotShare) full() bool { return n.most > 0 && n.slots >= n.most }

// wants reports whether the node may get a slot.
func (n *slotShare) wants() bool { return (n.waits || len(n.queue.items) > 0) && !n.full() }

// set changes the numbers of an epoch, and adjusts all nodes above it.
func (n *slotShare) set(running, slots int, waits bool) {
	running, slots = running-n.running, slots-n.slots
	n.waits = waits
	for ; n.parent != nil; n = n.parent {
		n.running += running
		n.slots += slots
		n.parent.queue.set(n, n.wants())
	}
}

// bounded reports whether a quota forbids a further slot.
func (n *slotShare) bounded() bool {
	for ; n != nil; n = n.parent {
		if n.full() {
			return true
		}
	}
	return false
}

// next returns the epoch whose turn is next; nil without one.
func (n *slotShare) next() *demand {
	for n.demand == nil {
		if n = n.queue.top(); n == nil {
			return nil
		}
	}
	return n.demand
}

// before orders nodes: the one with the fewest slots for its weight comes first, and of these the one that has waited longest for a
// slot.
func (n *slotShare) before(other *slotShare) bool {
	return cmp.Or(cmp.Compare(n.perWeight(), other.perWeight()), cmp.Compare(n.last, other.last), cmp.Compare(n.name, other.name), cmp.Compare(n.number, other.number)) < 0
}

// slotShareOf returns the node of an epoch.
func (s *Scheduler) slotShareOf(d *demand) *slotShare {
	job := d.epoch.Job
	name := job.Options.EffectiveTenant()
	tenant := s.tenants[name]
	if tenant == nil {
		bounds := s.BoundsOf(name)
		tenant = s.all.add(&slotShare{name: name, weight: bounds.Weight, most: bounds.MaxSlots})
		s.tenants[name] = tenant
	}
	node := s.jobs[job]
	if node == nil {
		node = tenant.add(&slotShare{number: job.Sequence, weight: job.Options.EffectiveWeight(), most: s.BoundsOf(name).MaxSlotsPerJob})
		s.jobs[job] = node
	}
	return node.add(&slotShare{number: d.epoch.Epoch, weight: 1, demand: d})
}

// BoundsOf returns the weight and the quotas of a tenant.
func (s *Scheduler) BoundsOf(tenant string) Tenant {
	if bounds, known := s.bounds[tenant]; known {
		return bounds
	}
	return Tenant{Weight: 1}
}

// newSlotShares returns an empty queue of nodes.
func newSlotShares() queue[slotShare] {
	return queue[slotShare]{before: (*slotShare).before, at: func(n *slotShare) *int { return &n.at }}
}

func (n *slotShare) add(child *slotShare) *slotShare {
	child.parent, child.at, child.queue = n, -1, newSlotShares()
	n.children++
	return child
}

// dropSlotShare removes the node of an epoch, and those of its job and its tenant with their last epoch.
func (s *Scheduler) dropSlotShare(d *demand) {
	d.slotShare.set(0, 0, false)
	job := d.slotShare.parent
	if job.children--; job.children > 0 {
		return
	}
	delete(s.jobs, d.epoch.Job)
	if job.parent.children--; job.parent.children == 0 {
		delete(s.tenants, job.parent.name)
	}
}

// Usage is what a tenant or a job uses.
type Usage struct {
	// Running streams take slots. Slots counts those of prefetched epochs too.
	Running, Slots int
	// Bounded is set if a quota forbids further slots.
	Bounded bool
}

// OfJob returns what a job uses.
func (s *Scheduler) OfJob(job *durable.Job) Usage { return s.jobs[job].usage() }

// OfTenant returns what a tenant uses.
func (s *Scheduler) OfTenant(name string) Usage { return s.tenants[name].usage() }

func (n *slotShare) usage() Usage {
	if n == nil {
		return Usage{}
	}
	return Usage{Running: n.running, Slots: n.slots, Bounded: n.bounded()}
}
