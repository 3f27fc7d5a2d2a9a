package fleet

import (
	"cmp"
	"slices"
	"strings"
)

// Worker is a registered remote worker.
type Worker struct {
	ID, Address string
	// Fixed counts its unfinished streams that have to be computed to their end or again, Streams all unfinished ones.
	Fixed, Streams int
	// Order is the order in which workers registered.
	Order uint64
}

// dismiss chooses workers that leave, if more are ready than are asked for.
func (f *Fleet) dismiss(workers func() []Worker) {
	if f.limits.Fixed {
		return
	}
	leaving := setOf(f.leaving)
	candidates := slices.DeleteFunc(slices.Clone(f.state.Removable), func(address string) bool { return leaving[address] })
	excess := len(candidates) - f.desired
	if excess <= 0 {
		return
	}
	if !f.state.Ordered {
		registered, byAddress := workers(), map[string]*Worker{}
		places := newPlaces(len(registered), func(i int) string { return registered[i].Address })
		for _, address := range candidates {
			if at, found := places.find(address); found {
				byAddress[address] = &registered[at]
			}
		}
		slices.SortStableFunc(candidates, func(a, b string) int { return compare(byAddress[a], byAddress[b]) })
	}
	f.setLeaving(append(f.leaving, candidates[:excess]...))
}

// compare orders workers by what they have to hand over, the least first. A worker that is not registered has nothing. Among
// equal ones, the newest leaves first.
func compare(a, b *Worker) int {
	switch {
	case a == nil && b == nil:
		return 0
	case a == nil:
		return -1
	case b == nil:
		return 1
	}
	return cmp.Or(cmp.Compare(a.Fixed, b.Fixed), cmp.Compare(a.Streams, b.Streams), cmp.Compare(b.Order, a.Order), cmp.Compare(a.ID, b.ID))
}

// AnyLeaves reports whether a worker leaves.
func (f *Fleet) AnyLeaves() bool { return len(f.leaving) > 0 }

// Leaves reports whether the worker at an address leaves.
func (f *Fleet) Leaves(address string) bool {
	_, leaves := f.leaves.find(address)
	return leaves
}

func (f *Fleet) setLeaving(addresses []string) {
	f.leaving, f.leaves = addresses, newPlaces(len(addresses), func(i int) string { return addresses[i] })
}

// places finds addresses in a list. Two addresses name the same worker if host and port are equal. One that has no port names
// the worker of a whole host.
type places struct {
	// exact has the first position of each address. ofHost has that of each host.
	exact  map[place]int
	ofHost map[string]int
}

type place struct{ host, port string }

func newPlaces(n int, address func(i int) string) places {
	p := places{make(map[place]int, n), map[string]int{}}
	for i := range n {
		host, port := split(address(i))
		if _, known := p.exact[place{host, port}]; !known {
			p.exact[place{host, port}] = i
		}
		if _, known := p.ofHost[host]; !known {
			p.ofHost[host] = i
		}
	}
	return p
}

// find returns the first position in the list with the same worker as an address.
func (p places) find(address string) (position int, found bool) {
	host, port := split(address)
	if port == "" {
		position, found = p.ofHost[host]
		return position, found
	}
	position, found = p.exact[place{host, port}]
	if whole, known := p.exact[place{host, ""}]; known && (!found || whole < position) {
		return whole, true
	}
	return position, found
}

func setOf(addresses []string) map[string]bool {
	set := make(map[string]bool, len(addresses))
	for _, address := range addresses {
		set[address] = true
	}
	return set
}

// split reads HOST:PORT, [HOST]:PORT or HOST.
func split(address string) (host, port string) {
	if inside, rest, closed := strings.Cut(strings.TrimPrefix(address, "["), "]"); closed {
		return inside, strings.TrimPrefix(rest, ":")
	}
	if strings.Count(address, ":") == 1 {
		host, port, _ = strings.Cut(address, ":")
		return host, port
	}
	return address, ""
}
