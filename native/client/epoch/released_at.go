//go:build !mutant_release

package epoch

// releasedAt returns the index at which another trainer continues a stream: the one after what this trainer has taken.
func releasedAt(st *stream) uint64 { return st.nextToDequeue() }
