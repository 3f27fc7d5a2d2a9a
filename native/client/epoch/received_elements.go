//go:build !mutant_dedupe

package epoch

// alreadyReceived returns how many of the elements from index first on the stream has received. next is the index
// that it accepts.
func alreadyReceived(first, elements, next uint64) uint64 {
	if first >= next {
		return 0
	}
	return min(elements, next-first)
}
