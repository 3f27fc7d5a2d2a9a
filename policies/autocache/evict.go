package autocache

import (
	"cmp"
	"fmt"
	"slices"
)

// Cache is a cache in the store, or one that a job would write.
type Cache struct {
	Key, Tenant string
	Bytes       float64
	// Benefit is how many seconds of a trainer the cache saves in the epochs that are expected to read it.
	Benefit float64
	// Pinned: the cache stays whatever its benefit is, because an operator pinned it or an epoch uses it.
	Pinned bool
	// Unused is the number of hours since the last read. TTL is the largest Unused at which a cache stays; 0 is no bound.
	Unused, TTL float64
}

func (c Cache) expired() bool { return c.TTL > 0 && c.Unused > c.TTL }

// Quota bounds the sizes of caches in bytes. A bound of 0 is none.
type Quota struct {
	Bytes   float64
	Tenants map[string]float64
}

// Eviction says which caches stay, and why, by their numbers.
type Eviction struct {
	Kept    []bool
	Reasons []string
}

// mostNodes bounds the search for a better set.
const mostNodes = 20_000

// Evict chooses the caches that stay: those with the greatest sum of benefits within the quota. It takes caches by benefit per
// byte, then looks for a better set by branch and bound. Pinned caches stay, even above the quota. Expired ones do
// not. Negative sizes and benefits count as 0.
func Evict(caches []Cache, q Quota) Eviction {
	e := Eviction{Kept: make([]bool, len(caches)), Reasons: make([]string, len(caches))}
	s := &selection{caches: caches, left: newRoom(q)}
	for i, c := range caches {
		switch {
		case c.Pinned:
			e.Kept[i], e.Reasons[i] = true, "the cache is pinned or in use"
			s.left.take(c)
		case c.expired():
			e.Reasons[i] = fmt.Sprintf("nobody has read the cache for %.3g hours, and it may be unused for %.3g hours", c.Unused, c.TTL)
		default:
			s.order = append(s.order, i)
		}
	}
	slices.SortFunc(s.order, func(a, b int) int {
		x, y := caches[a], caches[b]
		return cmp.Or(-cmp.Compare(density(x), density(y)), cmp.Compare(x.Bytes, y.Bytes), cmp.Compare(x.Key, y.Key), cmp.Compare(a, b))
	})
	for _, i := range s.best() {
		e.Kept[i], e.Reasons[i] = true, fmt.Sprintf("the cache saves %.3g s of a trainer with %s", benefit(caches[i]), size(caches[i].Bytes))
	}
	for _, i := range s.order {
		if !e.Kept[i] {
			e.Reasons[i] = fmt.Sprintf("the cache saves %.3g s of a trainer with %s, and the quota has no room for it beside the caches that stay", benefit(caches[i]), size(caches[i].Bytes))
		}
	}
	return e
}

func bytes(c Cache) float64   { return max(c.Bytes, 0) }
func benefit(c Cache) float64 { return max(c.Benefit, 0) }
func density(c Cache) float64 { return benefit(c) / max(bytes(c), 1) }

// room is the space that is left, of the whole store and of each tenant.
type room struct {
	bounded bool
	bytes   float64
	tenants map[string]float64
}

func newRoom(q Quota) room {
	r := room{bounded: q.Bytes > 0, bytes: q.Bytes, tenants: map[string]float64{}}
	for tenant, bytes := range q.Tenants {
		if bytes > 0 {
			r.tenants[tenant] = bytes
		}
	}
	return r
}

func (r *room) fits(c Cache) bool {
	left, bounded := r.tenants[c.Tenant]
	return (!bounded || bytes(c) <= left) && (!r.bounded || bytes(c) <= r.bytes)
}

func (r *room) take(c Cache) { r.add(c, -bytes(c)) }
func (r *room) give(c Cache) { r.add(c, bytes(c)) }

func (r *room) add(c Cache, n float64) {
	r.bytes += n
	if left, bounded := r.tenants[c.Tenant]; bounded {
		r.tenants[c.Tenant] = left + n
	}
}

// selection searches for the set with the greatest benefit. order has the caches by benefit per byte.
type selection struct {
	caches []Cache
	order  []int
	left   room
	nodes  int

	chosen, found []int
	sum, most     float64
}

// best returns the caches that stay. It visits the choice by benefit per byte first.
func (s *selection) best() []int {
	s.most = -1
	s.branch(0)
	return s.found
}

// branch decides about the caches from a number in the order on.
func (s *selection) branch(at int) {
	if s.nodes++; s.nodes > mostNodes && s.most >= 0 {
		return
	}
	if at == len(s.order) {
		if s.sum > s.most {
			s.most, s.found = s.sum, slices.Clone(s.chosen)
		}
		return
	}
	if s.most >= 0 && s.sum+s.bound(at) <= s.most {
		return
	}
	i := s.order[at]
	c := s.caches[i]
	if s.left.fits(c) {
		sum := s.sum
		s.left.take(c)
		s.chosen, s.sum = append(s.chosen, i), sum+benefit(c)
		s.branch(at + 1)
		s.chosen, s.sum = s.chosen[:len(s.chosen)-1], sum
		s.left.give(c)
	}
	s.branch(at + 1)
}

// bound returns the most that the caches from a number on can save, if the last one that fits could be divided.
func (s *selection) bound(at int) (most float64) {
	if !s.left.bounded {
		for _, i := range s.order[at:] {
			most += benefit(s.caches[i])
		}
		return most
	}
	left := s.left.bytes
	for _, i := range s.order[at:] {
		c := s.caches[i]
		if left <= 0 && bytes(c) > 0 {
			break
		}
		if bytes(c) > left {
			return most + density(c)*left
		}
		most, left = most+benefit(c), left-bytes(c)
	}
	return most
}
