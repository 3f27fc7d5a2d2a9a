//go:build !mutant_lease_client

package epoch

// outdated reports whether a lease is older than the newest one that the stream has seen.
func outdated(received, known uint64) bool { return received < known }
