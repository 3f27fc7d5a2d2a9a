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
	candidates := slices.DeleteFunc(slices.Clone(f.state.Removable), func(address string) bool { return slices.Contains(f.leaving, address) })
	excess := len(candidates) - f.desired
	if excess <= 0 {
		return
	}
	if !f.state.Ordered {
		registered, behind := workers(), map[string]*Worker{}
		for _, address := range candidates {
			if at := slices.IndexFunc(registered, func(w Worker) bool { return same(address, w.Address) }); at >= 0 {
				behind[address] = &registered[at]
			}
		}
		slices.SortStableFunc(candidates, func(a, b string) int { return compare(behind[a], behind[b]) })
	}
	f.leaving = append(f.leaving, candidates[:excess]...)
}

// compare orders workers by what they have to hand over, the least first. A worker that is not registered has nothing. Of
// equal ones the newest leaves first.
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
	return slices.ContainsFunc(f.leaving, func(leaving string) bool { return same(leaving, address) })
}

// same reports whether two addresses name the same worker. One that has no port names the worker of a whole host.
func same(a, b string) bool {
	hostA, portA := split(a)
	hostB, portB := split(b)
	return hostA == hostB && (portA == portB || portA == "" || portB == "")
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
