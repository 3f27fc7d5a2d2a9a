//go:build !teeth_lease_client

package epoch

// outdated reports whether a lease is older than the newest one that the stream has seen.
func outdated(told, known uint64) bool { return told < known }
