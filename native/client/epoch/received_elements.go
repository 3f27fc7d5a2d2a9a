//go:build !mutant_dedupe

package epoch

// alreadyReceived returns how many of the rows from index first on the stream has received. next is the index
// that it accepts.
func alreadyReceived(first, rows, next uint64) uint64 {
	if first >= next {
		return 0
	}
	return min(rows, next-first)
}
