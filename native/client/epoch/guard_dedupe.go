//go:build !teeth_dedupe

package epoch

// alreadyReceived is how many of so many rows from index first on the stream has already, when next is the one that it wants.
func alreadyReceived(first, rows, next uint64) uint64 {
	if first >= next {
		return 0
	}
	return min(rows, next-first)
}
